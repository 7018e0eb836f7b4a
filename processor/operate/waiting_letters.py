"""Reads, selects and counts the dead letters of a topic at one moment: those that wait to be sent back, and others.

A consumer group without members keeps the position of each partition: letters before it were sent back, or appended
again. Kafka forgets a position some time after its commit (`offsets.retention.minutes`, default seven days). So
without a position, letters that are older do not wait, although they are still kept: they may have been sent back
(`Admin.unread_offsets`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.config import Config
from processor.errors import BrokerUnavailable, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.clients.log_reader import LogReader
from processor.wire.dead_letter import DeadLetter, read_letter


class LetterSelection(NamedTuple):
    """A selection of dead letters: all, those of one reason, or a single one."""

    reason: str | None = None
    """Only those with this reason."""
    place: tuple[int, int] | None = None
    """Only the one at this partition and offset of the dead-letter topic."""

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter is selected."""
        if self.reason is not None and letter.reason != self.reason:
            return False
        return self.place is None or self.place == (letter.partition, letter.record.offset)


@dataclass(slots=True)
class Survey:
    """The counts of waiting dead letters."""

    waiting: Counter[str] = field(default_factory=Counter)
    """All waiting letters, by reason."""
    selected: int = 0
    """The number of letters to send back."""
    others: int = 0
    """The number of other letters before `until`: they are appended again."""
    until: dict[int, int] = field(default_factory=dict)
    """The offset after the last letter of each partition that moves. It is the last selected one, or, where a letter
    before that one is appended again, the last one: the order of a key's letters stays. Later ones stay in place."""
    behind: Counter[int] = field(default_factory=Counter)
    """The number of letters that stay in place, by partition."""


def survey(
    batches: Iterable[tuple[int, list[DeadLetter]]],
    selection: LetterSelection,
    on_seen: Callable[[int], None] = lambda _: None,
) -> Survey:
    """Count dead letters, in order per partition.

    Args:
        batches: the dead letters, with their partition numbers.
        selection: the letters to send back.
        on_seen: called with the number of letters seen so far.
    """
    counts = Survey()
    ends: dict[int, int] = {}
    appends: set[int] = set()  # Partitions with letters that are appended again.
    for partition, letters in batches:
        for letter in letters:
            counts.waiting[letter.reason or "unknown"] += 1
            ends[partition] = letter.record.offset + 1
            if not selection.takes(letter):
                counts.behind[partition] += 1
                continue
            counts.selected += 1
            others = counts.behind.pop(partition, 0)
            counts.others += others
            counts.until[partition] = ends[partition]
            if others or not letter.is_whole:  # The full record may be gone.
                appends.add(partition)
        on_seen(len(letters))
    for partition in appends:
        counts.others += counts.behind.pop(partition, 0)
        counts.until[partition] = ends[partition]
    return counts


_ASK_TIMEOUT_S: Final = 0.5
_PATIENCE_S: Final = 30.0


class WaitingLetters:
    """The dead letters of one topic that wait to be sent back. One thread only."""

    def __init__(self, config: Config, topic: str) -> None:
        """Read the positions and the ends of its partitions.

        Raises:
            ConfigurationError: no such topic.
            BrokerUnavailable: no answer in time.
            Stop: a position is after the end.
        """
        if topic not in config.queues:
            config.root(topic)
        self.topic = config.kafka_names.topic(topic, "dlq")
        self.group = group = config.letters_group(topic)
        """The consumer group with the positions."""
        admin = Admin(config.kafka, config.connect_timeout_s)
        partitions = range(TopicLookup(admin).partitions(self.topic))
        self._reader = LogReader(config.kafka, group=group)
        try:
            # Positions first: ends that are read later cannot be before them.
            self.positions = {partition: self.committed(partition) for partition in partitions}
            self._cut = SnapshotBoundary(
                config.kafka, admin, topic=self.topic, partitions=partitions, group=group, has_marks=False
            )
        except BaseException:
            self._reader.close()
            raise
        try:
            self._refuse_foreign()
            lost = [number for number, end in self._cut.ends.items() if end and self.positions[number] is None]
            self._unread = admin.unread_offsets(self.topic, lost) if lost else {}
        except BaseException:
            self.__exit__()
            raise
        self.forgotten: Counter[int] = Counter()
        """Number of letters of each partition that the last `letters` left out, because Kafka may have forgotten that
        they were sent back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cut.close()
        self._reader.close()

    def letters(self, until: Mapping[int, int] | None = None) -> Iterator[tuple[int, list[DeadLetter]]]:
        """The waiting letters, in order per partition, with partition numbers.

        Args:
            until: the offset after the last letter of each partition; None: the ends at the beginning.

        Raises:
            Stop: a partition cannot be read.
        """
        begins = {partition: position or 0 for partition, position in self.positions.items()}
        self.forgotten.clear()
        for partition, batch in self._cut.between(begins, self._cut.ends if until is None else until):
            waiting = [letter for record in batch if self.waits(letter := read_letter(partition, record))]
            if len(waiting) < len(batch):
                self.forgotten[partition] += len(batch) - len(waiting)
            yield partition, waiting

    def everything(self) -> Iterator[tuple[int, list[DeadLetter]]]:
        """All kept letters, as `letters`; `waits` identifies the waiting ones."""
        for partition, batch in self._cut.between({}, self._cut.ends):
            yield partition, [read_letter(partition, record) for record in batch]

    def waits(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter has not been sent back yet."""
        position = self.positions[letter.partition]
        return letter.record.offset >= (self._unread.get(letter.partition, 0) if position is None else position)

    def ends(self, counts: Survey) -> dict[int, int]:
        """The ends, by partition, behind which the position is to be moved: no letter of a survey stays before them.

        The position after the last letter is before the marker of its transaction, which would be counted as a letter.
        """
        return {
            partition: end
            for partition, end in self._cut.ends.items()
            if end > (self.positions[partition] or 0) and not counts.behind[partition]
        }

    def committed(self, partition: int) -> int | None:
        """The current position of a partition; waits while an open transaction is about to change it.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._reader.committed(self.topic, partition, _ASK_TIMEOUT_S)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"reading {self.topic}: no answer about the position of partition {partition} in "
                        f"{_PATIENCE_S:g} s; `sowstream doctor` looks closer"
                    ) from None

    def group_metadata(self) -> Any:
        """The group's metadata, which a transaction needs to move the positions."""
        return self._reader.group_metadata()

    def _refuse_foreign(self) -> None:
        """Reject a position after the end: the topic was recreated under this name, or has lost records.

        Raises:
            Stop: there is one.
        """
        for partition, position in self.positions.items():
            if position is not None and position > self._cut.ends[partition]:
                raise Stop(
                    f"{self.topic} partition {partition} ends at {self._cut.ends[partition]}, but the group "
                    f"{self.group} stands at {position}: the topic has lost records. Set the group back with Kafka's "
                    "kafka-consumer-groups --reset-offsets, then try again"
                )
