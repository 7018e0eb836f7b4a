"""What a restore reads back of one partition: its part of the SOW topic, and of the mark topic if it has marks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from operator import add
from typing import TYPE_CHECKING, Final, cast

from processor.errors import PartitionHeld
from processor.kafka.message import columns, records
from processor.runtime.recovery.encoded_heads import EncodedHeads
from processor.store.staleness import distrusted
from processor.wire.sow_headers import stored_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.kafka.message import Message
    from processor.record import Record, Stored
    from processor.runtime.recovery.redelivered import Tail
    from processor.store.layered_state import TransactionalState
    from processor.store.marks import TransactionalMarks


_MANY: Final = 100_000
"""Records to go for which a store is worth preparing: that takes as long as some ten thousand of them."""


class RestoredLog(ABC):
    """One partition of a topic on its way into memory or the store."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.target = 0
        """The offset at which it is complete."""
        self.is_complete = False
        """Whether it has come there."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The next offset to take."""

    @abstractmethod
    def take(self, records: Sequence[Record]) -> None:
        """The next records.

        Raises:
            PartitionHeld: one of them was not written by a worker.
            StateDamaged: the store cannot take them.
        """

    def take_messages(self, messages: Sequence[Message]) -> None:
        """The next records, at least one, as they came; otherwise as `take`."""
        self.take(records(messages))

    @abstractmethod
    def finish(self, end: int) -> None:
        """There is nothing before this offset that was not taken.

        Raises:
            StateDamaged: the store cannot take it.
        """

    @abstractmethod
    def distrust(self, horizon_ms: float) -> str | None:
        """Wipe what cannot come of this log, as it ends at `target`; why, or None if it can.

        Args:
            horizon_ms: how long deletes stay in the topic.
        """

    def _refuse(self, record: Record, why: str, kind: str) -> PartitionHeld:
        return PartitionHeld(
            "unreadable_batch",
            f"{self.topic} partition {self.partition} offset {record.offset} is not a {kind}: {why}. "
            f"Only workers may write to a {kind.split(maxsplit=1)[0]} topic",
        )


class SowLog(RestoredLog):
    """The SOW topic, into the state."""

    def __init__(
        self,
        topic: str,
        partition: int,
        state: TransactionalState,
        tail: Tail | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        """Make one that goes on where the state ends, or at the tail's beginning, or at the topic's if `is_whole`."""
        super().__init__(topic, partition)
        self._state = state
        self._heads = EncodedHeads()
        self._tail = tail
        # The state may have a tail already, but not what is to be learned from it.
        self._begin = 0 if is_whole else None if tail is None else tail.position

    @property
    def position(self) -> int:
        """The next offset to take."""
        return self._state.position if self._begin is None else min(self._begin, self._state.position)

    def take(self, records: Sequence[Record]) -> None:
        """Apply a batch: the last record of each key counts."""
        changes: dict[bytes, Stored | None] = {}
        for record in records:
            try:
                if record.key is None:
                    raise ValueError("it has no key")
                changes[record.key] = stored_from(record)
            except ValueError as error:
                raise self._refuse(record, str(error), "SOW record") from error
        if self._tail is not None:
            self._tail.take(records)
        self._begin = None
        # As of its last record, not of now: a delete behind it may be as old, and gone before we come back.
        self._state.restore(changes, records[-1].offset + 1, records[-1].timestamp_ms)

    def take_messages(self, messages: Sequence[Message]) -> None:
        """Apply a batch with no object made for each of its records, where nothing asks for one."""
        state, heads, came = self._state, self._heads, columns(messages)
        is_tail = self._tail is not None and came.next_offset > self._tail.position
        try:
            before = list(map(heads.__getitem__, came.headers))
        except ValueError:
            is_tail = True  # It may stand at a tombstone, which needs none; else `take` says which one it is.
        if is_tail or heads.expires or None in came.keys or not state.can_load:
            self.take(records(messages))
            return
        values = cast("list[bytes]", came.values)
        if None in came.values:
            rows = [None if value is None else head + value for head, value in zip(before, came.values, strict=True)]
        else:
            rows = list(map(add, before, values))
        changes = cast("dict[bytes, bytes | None]", dict(zip(came.keys, rows, strict=True)))
        is_many = self.target - came.next_offset > _MANY
        self._begin = None
        state.load(changes, came.next_offset, came.timestamp_ms, is_many=is_many)

    def finish(self, end: int) -> None:
        """The state is complete, as of now."""
        self._begin = None
        self._state.restore({}, max(end, self.position), int(time.time() * 1000))
        self.is_complete = True

    def distrust(self, horizon_ms: float) -> str | None:
        """Wipe a state that cannot be a cache of this topic, or that is too old to have seen its deletes."""
        progress = self._state.store.progress()
        found = distrusted(progress, self.target, horizon_ms, position=self._state.position)
        if found is None:
            return None
        reason, why = found
        self._state.wipe(reason)
        return why


class MarkLog(RestoredLog):
    """The mark topic, into memory."""

    def __init__(self, topic: str, partition: int, marks: TransactionalMarks, tail: Tail | None = None) -> None:
        super().__init__(topic, partition)
        self._marks = marks
        self._end = None if tail is None else tail.mark_position
        if self._end is not None and marks.position > self._end:
            marks.wipe()

    @property
    def position(self) -> int:
        """The next offset to take."""
        return self._marks.position

    def take(self, records: Sequence[Record]) -> None:
        """The marks in their order: the bound needs to know which ones are oldest."""
        changes = []
        for record in records:
            if record.key is None:
                raise self._refuse(record, "it has no key", "mark")
            if self._end is None or record.offset < self._end:
                changes.append((record.key, record.value))
        self._marks.restore(changes, records[-1].offset + 1)

    def finish(self, end: int) -> None:
        """The marks are complete."""
        self._marks.restore((), max(end, self.position))
        self.is_complete = True

    def distrust(self, horizon_ms: float) -> str | None:  # noqa: ARG002
        """Wipe marks that are ahead of their topic; none is older than the process."""
        if self.position <= self.target:
            return None
        self._marks.wipe()
        return "they are ahead of the mark topic, which must have been made anew"
