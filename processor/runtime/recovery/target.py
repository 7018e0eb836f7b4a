"""Finds out from where and to where partitions are to be restored, and never waits for an answer.

::

    committed offset, oldest input kept ──▶ oldest record and true end of each log, settings of the SOW topic ──▶ aim

Each partition goes this way by itself: one whose question is not answered holds up no other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.errors import PartitionHeld
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.answers import retained_ms
from processor.kafka.admin.partition_questions import PartitionQuestion
from processor.runtime.recovery.redelivered import Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.kafka.admin.admin import Admin, Place
    from processor.kafka.admin.answers import Answers, Committed
    from processor.runtime.recovery.input_position import InputPositions

_SETTINGS: Final = 0  # A question about a topic as a whole is asked under this number.


class Start(NamedTuple):
    """Where the input of a partition goes on."""

    offset: int
    """The next input offset."""
    tail: Tail | None = None
    """What the SOW topic may have of the input behind it; None after a transaction."""
    is_new: bool = False
    """Whether the group has no offset."""
    note: str | None = None
    """What stands beside the group's offset."""
    oldest: int = 0
    """The oldest input offset kept."""


class Aim(NamedTuple):
    """From where and to where a partition is to be restored."""

    start: Start
    """Where its input goes on."""
    oldest: dict[str, int]
    """The oldest offset kept, by topic."""
    ends: dict[str, int]
    """The true end, by topic: taken when the input offset was known."""


class Aims:
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
    ) -> None:
        """Ask nothing yet.

        Args:
            admin: asks.
            positions: judges input positions; told of the input topic's id.
            group: the input's consumer group.
            source: the input topic.
            sow: the topic that states are restored from; None if there are none.
            mark: the topic that marks are restored from; None if there are none.
        """
        self._positions = positions
        self._admin = admin
        self._source = source
        self._topics = [topic for topic in (sow, mark) if topic is not None]
        self._sow = sow
        self._starts: dict[int, Start | None] = {}
        self._committed_of: dict[int, Committed] = {}
        self._oldest_input: dict[int, int] = {}
        self._oldest: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self.horizon_ms: float | None = math.inf if sow is None else None
        """How long deletes stay in the SOW topic; None: not known yet."""

        def committed(partitions: Sequence[int]) -> Answers[Committed]:
            return admin.ask_committed(group, source, partitions)

        self._ask_committed = PartitionQuestion(f"the committed offset of {source} partition {{}}", admin, committed)
        self._ask_oldest_input = self._place_question(source, "oldest")
        self._ask_oldest = {topic: self._place_question(topic, "oldest") for topic in self._topics}
        self._ask_ends = {topic: self._place_question(topic, "end") for topic in self._topics}
        self._ask_topic_id = PartitionQuestion(f"the id of {source}", admin, lambda _: admin.ask_topic_id(source))
        self._ask_settings = PartitionQuestion(f"the settings of {sow}", admin, lambda _: admin.ask_config(sow or ""))

    def add(self, partition: int) -> None:
        """Find out about a partition."""
        self.remove(partition)
        self._starts[partition] = None
        self._ask_committed.want(partition)
        self._ask_oldest_input.want(partition)
        if self.horizon_ms is None:
            self._ask_settings.want(_SETTINGS)
        if not self._positions.topic_id:
            self._ask_topic_id.want(_SETTINGS)

    def remove(self, partition: int) -> None:
        """Forget a partition."""
        if self._starts.pop(partition, self) is self:
            return
        self._committed_of.pop(partition, None)
        self._oldest_input.pop(partition, None)
        self._ask_committed.forget(partition)
        self._ask_oldest_input.forget(partition)
        for topic in self._topics:
            self._oldest.pop((topic, partition), None)
            self._ends.pop((topic, partition), None)
            self._ask_oldest[topic].forget(partition)
            self._ask_ends[topic].forget(partition)

    def unanswered(self, partition: int) -> str | None:
        """The first question about a partition that has no answer; None if there is none."""
        questions: list[PartitionQuestion[Any]] = []
        questions += [self._ask_committed, self._ask_oldest_input, *self._ask_oldest.values(), *self._ask_ends.values()]
        asked = [question.unanswered(partition) for question in questions]
        asked += [self._ask_settings.unanswered(_SETTINGS), self._ask_topic_id.unanswered(_SETTINGS)]
        return next((text for text in asked if text is not None), None)

    def is_in_balance(self, partition: int) -> bool:
        """Whether Kafka says that a transaction holds the committed offset in the balance."""
        error = self._ask_committed.error(partition)
        return error is not None and kafka_errors.is_unstable(error)

    def turn(self) -> dict[int, Aim | PartitionHeld]:
        """Take the answers that have come; the partitions that are ready to be restored, or cannot be.

        Raises:
            ConfigurationError: Kafka refuses.
        """
        self._committed_of |= self._ask_committed.turn()
        self._oldest_input |= self._ask_oldest_input.turn()
        self._positions.topic_id = next(iter(self._ask_topic_id.turn().values()), self._positions.topic_id)
        outcomes: dict[int, Aim | PartitionHeld] = {}
        for partition in self._committed_of.keys() & self._oldest_input.keys():
            committed, oldest = self._committed_of.pop(partition), self._oldest_input.pop(partition)
            try:
                self._starts[partition] = self._start_of(partition, committed, oldest)
            except PartitionHeld as error:
                outcomes[partition] = error
            else:
                # Only now, when the input offset is settled: offset, records and marks were committed together.
                for question in (*self._ask_oldest.values(), *self._ask_ends.values()):
                    question.want(partition)
        for topic in self._topics:
            self._oldest |= {(topic, number): at for number, at in self._ask_oldest[topic].turn().items()}
            self._ends |= {(topic, number): at for number, at in self._ask_ends[topic].turn().items()}
        for settings in self._ask_settings.turn().values():
            self.horizon_ms = retained_ms(settings)
        if self._positions.topic_id:
            outcomes |= self._complete()
        for partition in outcomes:
            self.remove(partition)
        return outcomes

    def _start_of(self, partition: int, committed: Committed, oldest: int) -> Start:
        """Where the group says that the input of a partition goes on.

        Raises:
            PartitionHeld: the records there are gone: it is told before much is restored.
        """
        if committed.offset is None:
            return Start(oldest, is_new=True, oldest=oldest)
        self._positions.refuse_gone(partition, committed.offset, oldest)
        tail = Tail.noted(committed.offset, committed.text)
        return Start(committed.offset, tail, note=committed.text, oldest=oldest)

    def _complete(self) -> dict[int, Aim]:
        if self.horizon_ms is None:
            return {}
        return {
            partition: Aim(
                start,
                {topic: self._oldest[topic, partition] for topic in self._topics},
                {topic: self._ends[topic, partition] for topic in self._topics},
            )
            for partition, start in self._starts.items()
            if start is not None and self._has_all(partition)
        }

    def _has_all(self, partition: int) -> bool:
        places = [(topic, partition) for topic in self._topics]
        return all(place in self._oldest and place in self._ends for place in places)

    def _place_question(self, topic: str, place: Place) -> PartitionQuestion[int]:
        return place_question(self._admin, topic, place)


_WORDS: Final[dict[Place, str]] = {
    "oldest": "the oldest offset",
    "end": "the end",
    "stable_end": "the last stable offset",
}


def place_question(admin: Admin, topic: str, place: Place) -> PartitionQuestion[int]:
    """A question where partitions of a topic begin or end."""

    def ask(partitions: Iterable[int]) -> Answers[int]:
        return admin.ask_offsets(topic, partitions, place)

    return PartitionQuestion(f"{_WORDS[place]} of {topic} partition {{}}", admin, ask)
