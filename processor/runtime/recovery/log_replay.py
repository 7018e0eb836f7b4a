"""Replays one partition of the SOW topic into its state, and of the mark topic into its marks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from operator import add
from typing import TYPE_CHECKING, Final, cast

from processor.errors import PartitionHeld
from processor.kafka.message import columns, records
from processor.record import Record
from processor.store.contract import past_ms, stale_reason
from processor.store.layout import encode_record, plain_head
from processor.store.marks import OWN_NAMES
from processor.wire.publisher_mark import mark_text
from processor.wire.record_headers import plain_version_of, removal_headers, stored_from, stored_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.hosting.commit_metadata import Redelivered
    from processor.kafka.message import Message
    from processor.record import Header, Stored
    from processor.runtime.recovery.restore_range import RestoreRange
    from processor.runtime.task import Task
    from processor.store.layered_state import LayeredState
    from processor.store.marks import TransactionalMarks


_PIECE: Final = 2_000
"""Records of a state that are looked at together."""

_PRESENT_MAX: Final = 500_000
"""Keys of an input in memory, about 40 MB."""


class EncodedHeads:
    """The head of a stored record, by the headers it has on the SOW topic.

    ::

        heads[headers] + value == encode_record(stored_of(headers, value))
    """

    expires = False
    """True if any of the records that were asked for expires."""

    def __getitem__(self, headers: tuple[Header, ...]) -> bytes:
        """Encode a head.

        Raises:
            ValueError: the headers are not those of a SOW record.
        """
        version = plain_version_of(headers)
        if version >= 0:  # Most have no more than a version and a kind: a third of the time.
            return plain_head(version)
        stored = stored_of(headers, b"")
        self.expires = self.expires or stored.expires_at_ms > 0
        return encode_record(stored)


_MANY: Final = 100_000
"""Remaining records that justify the preparation of a store, which takes as long as ten thousand records."""


class LogReplay(ABC):
    """One partition of a topic that is replayed into memory or the store."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.target = 0
        """The offset at which it is complete."""
        self.is_complete = False
        """True if it has reached that offset."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The next offset to take."""

    @abstractmethod
    def take(self, records: Sequence[Record]) -> None:
        """Apply the next records.

        Raises:
            PartitionHeld: a record was not written by a worker.
            StateDamaged: the store cannot take them.
        """

    def take_messages(self, messages: Sequence[Message]) -> None:
        """Apply the next messages, at least one; otherwise as `take`."""
        self.take(records(messages))

    @abstractmethod
    def finish(self, end: int) -> None:
        """Complete the replay: all records before this offset were taken.

        Raises:
            StateDamaged: the store cannot take the offset.
        """

    def wipe_if_stale(self, horizon_ms: float) -> str | None:  # noqa: ARG002
        """Wipe a state that cannot stem from this log, which ends at `target`; returns the reason, or None.

        Args:
            horizon_ms: the retention time of deletes in the topic.
        """
        return None

    def _refuse(self, record: Record, why: str, kind: str) -> PartitionHeld:
        return PartitionHeld(
            "unreadable_batch",
            f"{self.topic} partition {self.partition} offset {record.offset} is not a {kind}: {why}. "
            f"Only workers may write to a {kind.split(maxsplit=1)[0]} topic",
        )


class SowReplay(LogReplay):
    """Replays the SOW topic into the state."""

    def __init__(
        self,
        topic: str,
        partition: int,
        state: LayeredState,
        redelivered: Redelivered | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        """Begin where the state ends, or at the first record that may be redelivered, or at offset 0 if `is_whole`."""
        super().__init__(topic, partition)
        self._state = state
        self._heads = EncodedHeads()
        self._redelivered = redelivered
        # The state may contain these records already, but the redelivered offsets are found only by reading them.
        self._begin = 0 if is_whole else None if redelivered is None else redelivered.position

    @property
    def position(self) -> int:
        """The next offset to take."""
        return self._state.position if self._begin is None else min(self._begin, self._state.position)

    def take(self, records: Sequence[Record]) -> None:
        """Apply a batch, of which the last record of each key counts."""
        changes: dict[bytes, Stored | None] = {}
        for record in records:
            try:
                if record.key is None:
                    raise ValueError("it has no key")
                changes[record.key] = stored_from(record)
            except ValueError as error:
                raise self._refuse(record, str(error), "SOW record") from error
        if self._redelivered is not None:
            self._redelivered.take(records)
        self._begin = None
        # As of its last record, not of now: a later delete may be as old, and compacted before the next restore.
        self._state.restore(changes, records[-1].offset + 1, past_ms(records[-1].timestamp_ms))

    def take_messages(self, messages: Sequence[Message]) -> None:
        """Apply a batch without creating an object for each record, where possible."""
        state, heads, batch = self._state, self._heads, columns(messages)
        is_redelivered = self._redelivered is not None and batch.next_offset > self._redelivered.position
        try:
            before = list(map(heads.__getitem__, batch.headers))
        except ValueError:
            is_redelivered = True  # The record may be a tombstone, which needs none; else `take` names it.
        if is_redelivered or heads.expires or None in batch.keys or not state.can_load:
            self.take(records(messages))
            return
        values = cast("list[bytes]", batch.values)
        if None in batch.values:
            rows = [None if value is None else head + value for head, value in zip(before, batch.values, strict=True)]
        else:
            rows = list(map(add, before, values))
        changes = cast("dict[bytes, bytes | None]", dict(zip(batch.keys, rows, strict=True)))
        is_many = self.target - batch.next_offset > _MANY
        self._begin = None
        state.load(changes, batch.next_offset, past_ms(batch.timestamp_ms), is_many=is_many)

    def finish(self, end: int) -> None:
        """Complete the state, as of now."""
        self._begin = None
        self._state.restore({}, max(end, self.position), int(time.time() * 1000))
        self.is_complete = True

    def wipe_if_stale(self, horizon_ms: float) -> str | None:
        """Wipe a state that is no cache of this topic, or that is older than the retention of its deletes."""
        progress = self._state.store.progress()
        stale = stale_reason(progress, self.target, horizon_ms, position=self._state.position)
        if stale is None:
            return None
        reason, why = stale
        self._state.wipe(reason)
        return why


class MarkReplay(LogReplay):
    """Replays the mark topic into memory."""

    def __init__(
        self, topic: str, partition: int, marks: TransactionalMarks, redelivered: Redelivered | None = None
    ) -> None:
        super().__init__(topic, partition)
        self._marks = marks
        self._end = None if redelivered is None else redelivered.mark_position
        if self._end is not None and marks.position > self._end:
            marks.wipe()

    @property
    def position(self) -> int:
        """The next offset to take."""
        return self._marks.position

    def take(self, records: Sequence[Record]) -> None:
        """Apply marks in their order: the limit of marks drops the oldest."""
        changes = []
        for record in records:
            if record.key is None:
                raise self._refuse(record, "it has no key", "mark")
            # Those behind the end come again with the redelivered records; a fence, and a position of another engine,
            # do not. A worker's own position behind it changes nothing: the group's offset counts then.
            if self._end is None or record.offset < self._end or record.key in OWN_NAMES:
                changes.append((record.key, mark_text(record.key, record.value, record.headers)))
        self._marks.restore(changes, records[-1].offset + 1, records[-1].timestamp_ms)

    def finish(self, end: int) -> None:
        """Complete the marks."""
        self._marks.restore((), max(end, self.position))
        self.is_complete = True

    def wipe_if_stale(self, horizon_ms: float) -> str | None:  # noqa: ARG002
        """Wipe marks that are ahead of their topic; marks are never older than the process."""
        if self.position <= self.target:
            return None
        self._marks.wipe()
        return "they are ahead of the mark topic, which must have been made anew"


def replays(
    task: Task,
    restore_range: RestoreRange,
    redelivered: Redelivered | None,
    topics: tuple[str | None, str | None, str],
    *,
    is_whole: bool,
) -> list[LogReplay]:
    """Create the logs from which a task is restored, each with its end.

    Args:
        task: the task, with its state, its marks and its table as far as it has these.
        restore_range: the offsets.
        redelivered: the records that may be redelivered; None: none.
        topics: the SOW topic, the mark topic, and the input topic, of which the table is a copy.
        is_whole: whether the SOW topic is read from its beginning.
    """
    sow, mark, source = topics
    logs: list[LogReplay] = []
    if sow is not None:
        logs.append(SowReplay(sow, task.partition, task.state, redelivered, is_whole=is_whole))
    if mark is not None and task.marks is not None:
        logs.append(MarkReplay(mark, task.partition, task.marks, redelivered))
    if task.table is not None:
        logs.append(SowReplay(source, task.partition, task.table))
    for part in logs:
        part.target = restore_range.ends[part.topic]
    return logs


class PresentKeys(LogReplay):
    """Finds the records of a state whose keys a compacted input does not have, as its deletes do not stay.

    Of an input with more keys than fit into memory a part is compared, then the next one in another pass: `finish` sets
    the position back. A part is the keys whose hash has a remainder; one with too many keys is halved on the way.
    """

    def __init__(self, topic: str, partition: int, begin: int, end: int, state: LayeredState) -> None:
        super().__init__(topic, partition)
        self.target = end
        self.has_present_end = False
        """True if `target` is an end of which Kafka was asked when this pass had come to the one before."""
        self._position = self._begin = begin
        self._state = state
        self._keys: set[bytes] = set()
        self._parts, self._part = 1, 0
        self._later: list[tuple[int, int]] = []  # The parts of the next passes, each with their number at that time.
        self._is_again = False
        self._gone: list[tuple[bytes, int]] = []

    @property
    def position(self) -> int:
        """The next offset to take."""
        return self._position

    def take(self, records: Sequence[Record]) -> None:
        """Add the keys of these records, and drop those of tombstones."""
        keys, parts, part = self._keys, self._parts, self._part
        for record in records:
            key = record[0] or b""
            if hash(key) % parts == part:
                (keys.discard if record[1] is None else keys.add)(key)
        self._position = records[-1].offset + 1
        while len(self._keys) > _PRESENT_MAX:
            self._later.append((2 * self._parts, self._part + self._parts))
            self._parts *= 2
            self._keys = {key for key in self._keys if hash(key) % self._parts == self._part}

    def finish(self, end: int) -> None:
        """Compare the state with the keys of this pass, and begin the next one if there is one."""
        if self._is_again and self._position == self._begin:
            return  # The end that was reported for the pass before.
        after: bytes | None = None
        while rows := self._state.scan(after, _PIECE):
            after = rows[-1][0]
            mine = [row for row in rows if hash(row[0]) % self._parts == self._part]
            self._gone += [(key, stored.version) for key, stored in mine if key not in self._keys]
        self._keys = set()
        if self._later:
            self._parts, self._part = self._later.pop()
            self._position, self._is_again, self.has_present_end = self._begin, True, False
        else:
            self._position = max(self._position, end)
            self.is_complete = True

    def deletes(self, offset: int) -> list[Record]:
        """Return a delete of each record of the state whose key the input does not have.

        Their offsets end before the one at which the input continues, as if they had come last, and they have no time.
        """
        first = offset - len(self._gone)
        return [
            Record(key, None, removal_headers(version + 1, "delete"), max(0, first + place), 0)
            for place, (key, version) in enumerate(self._gone)
        ]
