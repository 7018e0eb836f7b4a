"""Sends dead letters back to the input topic, each exactly once, however often it is run, killed or run twice.

One transaction sends the selected letters of a stretch of the dead-letter topic to the input, appends the others to the
dead-letter topic again, and moves the group's position past the stretch. There is one transactional id per topic: a
replay that starts fences the previous one and rolls back its open transaction. The position, which is read before each
transaction, shows everything that the previous one has committed.

The full record of a truncated dead letter is fetched from its input topic.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Self

from processor.config import Config
from processor.errors import ConfigurationError, OutputTooLarge, Stop, TransactionAborted
from processor.installation.configured_pipelines import pipeline_of
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.kafka.message import records
from processor.operate.waiting_letters import LetterSelection, Survey, WaitingLetters
from processor.record import Record
from processor.repair.heal import fitting
from processor.wire.dead_letter import DeadLetter, input_record

_PATIENCE_S: Final = 30.0
_TRY_S: Final = 0.5


class FullRecordMissing(NamedTuple):
    """The reason why a full record is not available."""

    why: str
    """The event, with the place of the record."""


class FullRecords:
    """Reads single records of the input by the header `source` of their dead letters. One thread only."""

    def __init__(self, kafka: Mapping[str, str], *, group: str, topic: str) -> None:
        """Create the reader, without connecting.

        Args:
            kafka: librdkafka properties.
            group: the reader's consumer group.
            topic: the input; letters of other topics are not looked up.
        """
        # It reads single records; data after them would be discarded.
        self._kafka = {**kafka, "queued.min.messages": "1", "queued.max.messages.kbytes": "1024"}
        self._group = group
        self._topic = topic
        self._reader: LogReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def fetch(self, letter: DeadLetter) -> Record | FullRecordMissing:
        """The input record of a letter, if it is still the rejected one.

        Raises:
            Stop: Kafka refuses.
        """
        topic, _, place = (letter.source or "").partition("/")
        partition, _, offset = place.partition("/")
        if topic != self._topic or not partition.isdecimal() or not offset.isdecimal():
            return FullRecordMissing(f"its source {letter.source!r} is no record of {self._topic}")
        record = self._read(int(partition), int(offset))
        if record is None:
            return FullRecordMissing(f"{letter.source} is not there any more")
        if hashlib.sha256(record.value or b"").hexdigest() != letter.sha256:
            return FullRecordMissing(f"{letter.source} is another record now: its checksum is not the letter's")
        return record

    def _read(self, partition: int, offset: int) -> Record | None:
        """The record at a place; None if there is none."""
        if self._reader is None:
            self._reader = LogReader(self._kafka, group=self._group)
        reader, deadline_s = self._reader, time.monotonic() + _PATIENCE_S
        try:
            low, end = reader.bounds(self._topic, partition, _PATIENCE_S)
        except TimeoutError:
            return None
        if not low <= offset < end:
            return None
        reader.add([Position(self._topic, partition, offset)])
        try:
            while time.monotonic() < deadline_s:
                read = reader.read(1, _TRY_S)
                for record in records(read.messages):
                    return record if record.offset == offset else None
                if read.ends:
                    return None
        finally:
            reader.remove(self._topic, partition)
        return None


_LETTERS_MAX: Final = 10_000  # In one transaction.
_RECORD_BYTES_MAX: Final = 256 * 1024 * 1024
"""Size limit of a record that is fetched from its input."""


def replayable(config: Config, topic: str) -> str:
    """The input topic of a topic's dead letters, if publishers may write to it.

    Raises:
        ConfigurationError: only workers may write to it, or no such topic.
    """
    if topic in config.queues:
        return config.kafka_names.topic(topic, "queue")
    pipeline = pipeline_of(config, topic)
    if pipeline.processor_type.input.role == "publish":
        return pipeline.source
    raise ConfigurationError(
        f"the dead letters of {topic!r} came from {pipeline.source}, which only workers write to. When the cause is "
        f"mended, publish the records of their keys to {config.underlying(topic)!r} again, unchanged if you like: "
        f"`sowstream dlq list {topic}` shows the keys, and each update is delivered to {topic!r} again"
    )


class DeadLetterReplay:
    """One replay of a topic. Leaving its `with` ends it and rolls back uncommitted work. One thread only."""

    def __init__(self, config: Config, topic: str) -> None:
        """Fence an earlier replay of this topic, and read the positions.

        Raises:
            ConfigurationError: the topic cannot be replayed, or does not exist.
            Stop: Kafka refuses, or does not answer.
        """
        self._name = topic
        self._input = replayable(config, topic)
        lookup = TopicLookup(Admin(config.kafka, config.connect_timeout_s))
        for kafka_topic in (self._input, config.kafka_names.topic(topic, "dlq")):
            lookup.partitions(kafka_topic)
        self._producer = TransactionalProducer(
            # A record that is compressed on the way in must be compressed on the way out, to stay below its topic's
            # limit.
            {"compression.type": "zstd", **config.kafka},
            transactional_id=config.letters_group(topic),
            transaction_timeout_s=config.runtime.transaction_timeout_s,
            record_bytes_max=_RECORD_BYTES_MAX,
        )
        self._whole = FullRecords(config.kafka, group=config.letters_group(topic), topic=self._input)
        self.sent = 0
        """Dead letters sent back so far."""
        self.unsent: list[str] = []
        """For each selected letter that was not sent, its place and the reason."""
        # Fence first: from here on nothing else moves the positions without fencing us.
        self._producer.start()
        try:
            self.waiting = WaitingLetters(config, topic)
        except BaseException:
            self._producer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.waiting.__exit__(*error)
        self._whole.__exit__(*error)
        try:
            if self._producer.is_open:
                # Not left to the broker's timeout: until then readers would wait at the open transaction.
                self._producer.abort()
        finally:
            self._producer.close()

    def send(self, counts: Survey, selection: LetterSelection, on_done: Callable[[int], None] = lambda _: None) -> None:
        """Send the selected letters.

        Args:
            counts: the result of a survey of `waiting`.
            selection: the one of the survey.
            on_done: called after each commit with the number of letters processed, selected or not.

        Raises:
            Stop: another replay took over, or Kafka did not take a transaction; committed letters stay sent.
        """
        for partition, until in counts.until.items():
            # One partition after the other: in a transaction for each read, an interruption would leave letters that
            # were appended again behind later ones of their keys.
            letters = (letter for _, batch in self.waiting.letters({partition: until}) for letter in batch)
            for stretch in fitting(letters, _LETTERS_MAX, _size):
                with self._explained():
                    self._move_fitting(partition, stretch, selection)
                on_done(len(stretch))
        if ends := self.waiting.ends(counts):
            for partition in ends:
                self._refuse_moved(partition)
            with self._explained():
                self._commit(ends)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the loss of a transaction as an error that explains it."""
        try:
            yield
        except TransactionAborted as error:
            # No abort: it may create a new producer, which would fence the replay that has fenced us.
            self._producer.close()
            raise Stop(self._stopped(error)) from error

    def _move_fitting(self, partition: int, stretch: list[DeadLetter], selection: LetterSelection) -> None:
        """Move a stretch in one transaction; if Kafka rejects a letter's full record, in another one without it."""
        try:
            self._move(partition, stretch, selection)
        except OutputTooLarge as error:
            if all(letter.is_whole for letter in stretch):
                raise
            self._producer.abort()
            self._move(partition, stretch, selection, refused=str(error))

    def _whole_records(self, letters: list[DeadLetter], refused: str) -> dict[int, Record]:
        """The full input records of truncated letters, by the letters' offsets, as far as they can be read."""
        records: dict[int, Record] = {}
        for letter in letters:
            record = FullRecordMissing(refused) if refused else self._whole.fetch(letter)
            if isinstance(record, FullRecordMissing):
                place = f"partition {letter.partition} offset {letter.record.offset}"
                self.unsent.append(f"the letter at {place} has only a part of its record: {record.why}")
            else:
                records[letter.record.offset] = record
        return records

    def _move(self, partition: int, stretch: list[DeadLetter], selection: LetterSelection, refused: str = "") -> None:
        """Move a stretch in one transaction; `refused` is the reason not to fetch full records."""
        waiting, producer = self.waiting, self._producer
        self._refuse_moved(partition)
        cut = [letter for letter in stretch if selection.takes(letter) and not letter.is_whole]
        whole = self._whole_records(cut, refused)
        goes = [selection.takes(letter) and (letter.is_whole or letter.record.offset in whole) for letter in stretch]
        selected = [
            input_record(letter, waiting.topic, whole.get(letter.record.offset))
            for letter, is_sent in zip(stretch, goes, strict=True)
            if is_sent
        ]
        others = [
            (letter.record.key, letter.record.value, letter.record.headers or [])
            for letter, is_sent in zip(stretch, goes, strict=True)
            if not is_sent
        ]
        if selected:
            producer.send(self._input, partition, selected)
        if others:
            producer.send(waiting.topic, partition, others)
        self._commit({partition: stretch[-1].record.offset + 1})
        self.sent += len(selected)

    def _commit(self, positions: Mapping[int, int]) -> None:
        """Commit the open transaction, if there is one, with new positions."""
        self._producer.commit(self.waiting.topic, positions, self.waiting.group_metadata())
        self.waiting.positions.update(positions)

    def _refuse_moved(self, partition: int) -> None:
        """Refuse if another replay has moved the position of a partition.

        A slow commit of ours has cost the producer then, and its successor has fenced a replay that took over
        meanwhile.
        """
        if self.waiting.committed(partition) != self.waiting.positions[partition]:
            raise Stop(self._taken_over())

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


def _size(letter: DeadLetter) -> int:
    """The bytes of its message, which may be fetched in full."""
    return letter.whole_bytes or len(letter.record.value or b"")
