"""Sends dead letters back to the input topic, each exactly once, however often it is run, killed or run twice.

One transaction sends the chosen ones of a stretch of the dead-letter topic to the input, puts the others of it at the
end of the dead-letter topic again, and moves the group's position behind it. There is one transactional id for each
topic: a replay that starts fences the one before and rolls back what that one left open. What the one before had
committed is seen in the position, which is looked at before each transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from processor.client.topic_lookup import TopicLookup
from processor.config import Config
from processor.errors import ConfigurationError, OutputTooLarge, Stop, TransactionAborted
from processor.hosting.pipeline import pipelines
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.admin import Admin
from processor.kafka.producers.transactional_producer import TransactionalProducer
from processor.record import Record
from processor.tools.dlq.choice import Choice
from processor.tools.dlq.survey import Survey
from processor.tools.dlq.waiting import Waiting, group_of
from processor.tools.dlq.whole import NotWhole, WholeRecords
from processor.wire.dead_letter import DeadLetter, input_record

_LETTERS_MAX: Final = 1_000  # In one transaction, and the bytes of their values.
_BYTES_MAX: Final = 16 * 1024 * 1024
_RECORD_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of a record that is fetched from its input."""


def replayable(config: Config, topic: str) -> str:
    """The Kafka topic that the dead letters of a topic came from, where publishers may write to it.

    Raises:
        ConfigurationError: only workers may; or no such topic.
    """
    (pipeline,) = pipelines(config, [topic])
    if not pipeline.processor_type.input.from_underlying:
        return pipeline.source
    section = config.conflated.get(topic) or config.processors[topic]
    raise ConfigurationError(
        f"the dead letters of {topic!r} came from {pipeline.source}, which only workers write to. When the cause is "
        f"mended, publish the records of their keys to {section.underlying!r} again, unchanged if you like: "
        f"`sowstream dlq list {topic}` shows the keys, and each update comes to {topic!r} anew"
    )


class Replay:
    """One run. Leave its `with` to end it; what is not committed then is rolled back. One thread only."""

    def __init__(self, config: Config, topic: str) -> None:
        """Take the place of whoever was replaying this topic, and look where it stands.

        Raises:
            ConfigurationError: the topic cannot be replayed, or does not exist.
            Stop: Kafka refuses, or does not answer.
        """
        self._name = topic
        self._input = replayable(config, topic)
        lookup = TopicLookup(Admin(config.kafka))
        for kafka_topic in (self._input, config.kafka_names.topic(topic, "dlq")):
            lookup.partitions(kafka_topic)
        self._producer = TransactionalProducer(
            # What came small over the wire is to go small: of a record that is larger than its topic's limit it counts.
            {"compression.type": "zstd", **config.kafka},
            transactional_id=group_of(config, topic),
            transaction_timeout_s=config.runtime.transaction_timeout_s,
            record_bytes_max=_RECORD_BYTES_MAX,
        )
        self._whole = WholeRecords(config.kafka, group=group_of(config, topic), topic=self._input)
        self.sent = 0
        """Dead letters sent back so far."""
        self.kept: list[str] = []
        """Why letters that were chosen wait on, with the place of each."""
        # Fence first: from here on nobody else moves the positions, or we shall be fenced.
        self._producer.start()
        try:
            self.waiting = Waiting(config, topic)
        except BaseException:
            self._producer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.waiting.__exit__(kind, error, trace)
        self._whole.__exit__(kind, error, trace)
        try:
            if self._producer.is_open:
                # Not left to the broker's timeout: until then readers would wait at what was sent.
                self._producer.abort()
        finally:
            self._producer.close()

    def send(self, found: Survey, choice: Choice, on_done: Callable[[int], None] = lambda _: None) -> None:
        """Send what was chosen.

        Args:
            found: what a survey of `waiting` found.
            choice: as in the survey.
            on_done: told how many dead letters are done with, chosen or not, after each commit.

        Raises:
            Stop: another replay took over, or Kafka did not take a transaction; what was committed before stays.
        """
        for partition, letters in self.waiting.letters(found.until):
            for stretch in _stretches(letters):
                try:
                    self._move_fitting(partition, stretch, choice)
                except TransactionAborted as error:
                    # No abort: it may end in a new producer, which would fence whoever has fenced us.
                    self._producer.close()
                    raise Stop(self._stopped(error)) from error
                on_done(len(stretch))

    def _move_fitting(self, partition: int, stretch: list[DeadLetter], choice: Choice) -> None:
        """One transaction; where Kafka does not take a letter's whole record, another one without it."""
        try:
            self._move(partition, stretch, choice)
        except OutputTooLarge as error:
            if all(letter.is_whole for letter in stretch):
                raise
            self._producer.abort()
            self._move(partition, stretch, choice, refused=str(error))

    def _whole_records(self, letters: list[DeadLetter], refused: str) -> dict[int, Record]:
        """The input records of letters that have only a part of them, by the letters' offsets; those that are there."""
        found: dict[int, Record] = {}
        for letter in letters:
            record = NotWhole(refused) if refused else self._whole.fetch(letter)
            if isinstance(record, NotWhole):
                place = f"partition {letter.partition} offset {letter.record.offset}"
                self.kept.append(f"the letter at {place} has only a part of its record: {record.why}")
            else:
                found[letter.record.offset] = record
        return found

    def _move(self, partition: int, stretch: list[DeadLetter], choice: Choice, refused: str = "") -> None:
        """One transaction; `refused` is why no whole records are to be fetched."""
        waiting, producer = self.waiting, self._producer
        if waiting.committed(partition) != waiting.positions[partition]:
            # A slow commit of ours has cost the producer: its successor fenced a replay that had gone on from there.
            raise Stop(self._taken_over())
        cut = [letter for letter in stretch if choice.takes(letter) and not letter.is_whole]
        whole = self._whole_records(cut, refused)
        goes = [choice.takes(letter) and (letter.is_whole or letter.record.offset in whole) for letter in stretch]
        chosen = [
            input_record(letter, waiting.topic, whole.get(letter.record.offset))
            for letter, is_sent in zip(stretch, goes, strict=True)
            if is_sent
        ]
        others = [
            (letter.record.key, letter.record.value, letter.record.headers or [])
            for letter, is_sent in zip(stretch, goes, strict=True)
            if not is_sent
        ]
        if chosen:
            producer.send(self._input, partition, chosen)
        if others:
            producer.send(waiting.topic, partition, others)
        position = stretch[-1].record.offset + 1
        producer.commit(waiting.topic, {partition: position}, waiting.group_metadata())
        waiting.positions[partition] = position
        self.sent += len(chosen)

    def _stopped(self, error: TransactionAborted) -> str:
        if kafka_errors.is_fenced(error):
            return self._taken_over()
        return (
            f"replaying {self._name}: {error}. {self.sent} dead letters were sent back before, the rest waits on: "
            "run the same command again"
        )

    def _taken_over(self) -> str:
        return (
            f"replaying {self._name}: another replay of this topic was started and has taken over. {self.sent} dead "
            "letters were sent back by this one, none of them twice; `sowstream dlq list` shows what still waits"
        )


def _stretches(letters: list[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Dead letters of one partition, cut into what one transaction takes."""
    stretch: list[DeadLetter] = []
    size_bytes = 0
    for letter in letters:
        bytes_more = letter.whole_bytes or len(letter.record.value or b"")
        if stretch and (len(stretch) == _LETTERS_MAX or size_bytes + bytes_more > _BYTES_MAX):
            yield stretch
            stretch, size_bytes = [], 0
        stretch.append(letter)
        size_bytes += bytes_more
    if stretch:
        yield stretch
