"""Asks Kafka for the first and last offsets to restore of each partition, without waiting for the answers.

::

    committed offset, oldest input kept ──▶ oldest record and true end of each log, settings of the topics ──▶ range

Each partition proceeds independently: a missing answer delays only its own partition.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.errors import PartitionHeld
from processor.hosting.commit_metadata import Redelivered
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.questions import PartitionQuestion, Question
from processor.runtime.recovery.input_position import InputPositions, Start
from processor.topics.durability import tombstones_kept_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.groups import Committed, OffsetKind

_SETTINGS: Final = 0  # The key of questions about a topic, in place of a partition number.


class RestoreRange(NamedTuple):
    """The offsets between which a partition is restored."""

    start: Start
    """The offset at which its input continues."""
    oldest: dict[str, int]
    """The oldest offset kept, by topic."""
    ends: dict[str, int]
    """The true end, by topic: asked for when the input offset was known."""


class RestoreRanges:
    """The partitions of one pipeline whose restore cannot begin yet. One thread only."""

    def __init__(
        self,
        admin: Admin,
        positions: InputPositions,
        *,
        group: str,
        source: str,
        sow: str | None,
        mark: str | None,
        table: bool = False,
        is_copy: bool = False,
    ) -> None:
        """Begin without partitions.

        Args:
            admin: sends the questions.
            positions: compares input positions; gets the input topic's id.
            group: the input's consumer group.
            source: the input topic.
            sow: the topic from which states are restored; None if there are none.
            mark: the topic from which marks are restored; None if there are none.
            table: whether a table of the input topic is restored.
            is_copy: whether the input is a compacted topic, and the states are compared with it after an outage.
        """
        self._positions = positions
        self._admin = admin
        input_table = source if table else None
        self._topics = [topic for topic in (sow, mark, input_table) if topic is not None]
        self._starts: dict[int, Start | None] = {}
        self._source = source
        self._is_copy = is_copy
        self.horizons_ms: dict[str, float] = {}
        """Retention time of deletes in each compacted topic, as far as it is known."""

        def committed(partitions: Sequence[int]) -> dict[int, Question[Committed]]:
            return admin.ask_committed(group, source, partitions)

        self._ask_committed = PartitionQuestion(
            f"the committed offset of {source} partition {{}}", admin.renewal, committed
        )
        self._ask_oldest_input = place_question(admin, source, "oldest")
        self._ask_oldest = {topic: place_question(admin, topic, "oldest") for topic in self._topics}
        self._ask_ends = {topic: place_question(admin, topic, "end") for topic in self._topics}
        if is_copy:
            self._ask_ends.setdefault(source, place_question(admin, source, "end"))
        self._ask_topic = PartitionQuestion(
            f"the id of {source}", admin.renewal, lambda _: {_SETTINGS: admin.ask_topic(source)}
        )
        compacted = {sow, input_table, source if is_copy else None} - {None}
        self._ask_settings = {topic: self._settings_question(topic) for topic in compacted if topic is not None}
        self._ask_young = PartitionQuestion(
            f"the young records of {source} partition {{}}", admin.renewal, self._young_of
        )
        self._of_places = [*self._ask_oldest.values(), *self._ask_ends.values()]
        self._of_partition: list[PartitionQuestion[Any]] = [self._ask_committed, self._ask_oldest_input]
        self._of_partition += [*self._of_places, self._ask_young]

    def add(self, partition: int) -> None:
        """Ask about a partition."""
        self.remove(partition)
        self._starts[partition] = None
        self._ask_committed.want(partition)
        self._ask_oldest_input.want(partition)
        for topic in self._ask_settings.keys() - self.horizons_ms.keys():
            self._ask_settings[topic].want(_SETTINGS)
        if not self._positions.topic_id:
            self._ask_topic.want(_SETTINGS)

    def remove(self, partition: int) -> None:
        """Forget a partition."""
        if self._starts.pop(partition, self) is not self:
            for question in self._of_partition:
                question.forget(partition)

    def unanswered(self, partition: int) -> str | None:
        """The first question about a partition that has no answer; None if there is none."""
        asked = [question.unanswered(partition) for question in self._of_partition]
        asked += [question.unanswered(_SETTINGS) for question in self._ask_settings.values()]
        asked.append(self._ask_topic.unanswered(_SETTINGS))
        return next((text for text in asked if text is not None), None)

    def is_in_balance(self, partition: int) -> bool:
        """Return whether an open transaction keeps Kafka from answering for the committed offset."""
        error = self._ask_committed.error(partition)
        return error is not None and kafka_errors.is_unstable(error)

    def turn(self) -> dict[int, RestoreRange | PartitionHeld]:
        """Take the answers that have arrived; returns the partitions that can be restored now, or never.

        Raises:
            ConfigurationError: Kafka refuses a question.
        """
        self._ask_committed.turn()
        self._ask_oldest_input.turn()
        for topic_id, _ in self._ask_topic.turn().values():
            self._positions.topic_id = topic_id
        outcomes: dict[int, RestoreRange | PartitionHeld] = {}
        for partition in self._ask_committed.answers.keys() & self._ask_oldest_input.answers.keys():
            if self._starts[partition] is not None:
                continue
            committed, oldest = self._ask_committed.answers[partition], self._ask_oldest_input.answers[partition]
            try:
                self._starts[partition] = self._start_of(partition, committed, oldest)
            except PartitionHeld as error:
                outcomes[partition] = error
            else:
                # Only after the input offset is known: offset, records and marks were committed together.
                for question in (*self._of_places, *([self._ask_young] if self._is_copy else [])):
                    question.want(partition)
        for question in self._of_places:
            question.turn()
        for topic, ask_settings in self._ask_settings.items():
            for settings in ask_settings.turn().values():
                self.horizons_ms[topic] = tombstones_kept_ms(settings)
        if self._source in self.horizons_ms:
            self._ask_young.turn()
        if self._positions.topic_id:
            outcomes |= self._complete()
        for partition in outcomes:
            self.remove(partition)
        return outcomes

    def _start_of(self, partition: int, committed: Committed, oldest: int) -> Start:
        """Derive the start of a partition's input from the group's offset.

        Raises:
            PartitionHeld: the next input records are gone, which is reported before a long restore.
        """
        if committed.offset is None:
            return Start(oldest, is_new=True, oldest=oldest)
        self._positions.refuse_gone(partition, committed.offset, oldest)
        redelivered = Redelivered.from_metadata(committed.offset, committed.text)
        return Start(committed.offset, redelivered, metadata=committed.text, oldest=oldest)

    def _complete(self) -> dict[int, RestoreRange]:
        if self._ask_settings.keys() - self.horizons_ms.keys():
            return {}
        return {
            partition: RestoreRange(
                self._with_ends(partition, start),
                {topic: question.answers[partition] for topic, question in self._ask_oldest.items()},
                {topic: self._ask_ends[topic].answers[partition] for topic in self._topics},
            )
            for partition, start in self._starts.items()
            if start is not None and all(partition in question.answers for question in self._of_places)
            if not self._is_copy or partition in self._ask_young.answers
        }

    def _with_ends(self, partition: int, start: Start) -> Start:
        if not self._is_copy:
            return start
        end, young = self._ask_ends[self._source].answers[partition], self._ask_young.answers[partition]
        return start._replace(end=end, young=young)

    def _settings_question(self, topic: str) -> PartitionQuestion[dict[str, str]]:
        admin = self._admin
        return PartitionQuestion(
            f"the settings of {topic}", admin.renewal, lambda _: {_SETTINGS: admin.ask_config(topic)}
        )

    def _young_of(self, partitions: Sequence[int]) -> dict[int, Question[int]]:
        since_ms = int(time.time() * 1000 - self.horizons_ms[self._source])
        return self._admin.ask_offsets(self._source, partitions, max(0, since_ms))


_WORDS: Final[dict[OffsetKind, str]] = {
    "oldest": "the oldest offset",
    "end": "the end",
    "stable_end": "the last stable offset",
}


def place_question(admin: Admin, topic: str, kind: OffsetKind) -> PartitionQuestion[int]:
    """Create a question for the first or last offsets of a topic's partitions."""

    def ask(partitions: Iterable[int]) -> dict[int, Question[int]]:
        return admin.ask_offsets(topic, partitions, kind)

    return PartitionQuestion(f"{_WORDS[kind]} of {topic} partition {{}}", admin.renewal, ask)
