"""The history of a topic: its last updates, with the record before each, for subscribers that resume.

::

    position of a partition   ──┬────────────────┬─────────────────┬──▶
                             floor            bookmark            now
        the older updates are gone   kept updates, each with the record before it

A bookmark at or after the floor can be resumed: for each key that changed since, the first kept update has the record
that the subscriber holds, and the last one has the record of now. A bookmark before the floor is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from processor.wire.record_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.record import Record

Positions: TypeAlias = "Mapping[int, int]"
"""The next offset of each partition."""

HISTORY_BYTES: Final = 64 * 1024 * 1024
"""Default limit of the history of one topic."""
_ENTRY_BYTES: Final = 400
"""Approximate memory of an entry besides its values."""
_MARKS_MAX: Final = 4_096
"""Positions that are kept by time."""
_ENDS_MAX: Final = 10_000
"""Ends of records whose versions are kept."""


class PastUpdate(NamedTuple):
    """One update of the past."""

    offset: int
    """Its offset in the partition."""
    key: bytes
    """The Kafka record key."""
    old: Record | None
    """The record before it; None: there was none."""
    new: Record
    """The record after it; a tombstone has no value."""


class _Partition:
    """The kept updates of one partition, oldest first."""

    __slots__ = ("dropped", "floor", "offsets", "updates")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.offsets: list[int] = []
        self.updates: list[PastUpdate] = []
        self.dropped = 0  # Entries at the beginning of the lists that count as gone.

    def drop_first(self) -> None:
        """Drop the oldest update."""
        self.floor = self.offsets[self.dropped] + 1
        self.updates[self.dropped] = cast("PastUpdate", None)  # Freed now, not all at once when their places go.
        self.dropped += 1
        if self.dropped > 1_000 and self.dropped * 2 > len(self.offsets):
            del self.offsets[: self.dropped], self.updates[: self.dropped]
            self.dropped = 0


class UpdateHistory:
    """The last updates of every partition of a topic, limited in bytes."""

    def __init__(self, bytes_max: int = HISTORY_BYTES) -> None:
        """Begin without updates.

        Args:
            bytes_max: the limit; the oldest updates of all partitions are dropped beyond it.
        """
        self._bytes_max = bytes_max
        self._bytes = 0
        self._partitions: dict[int, _Partition] = {}
        self._sizes: deque[tuple[int, int]] = deque()  # Of all updates in order of arrival: partition and bytes.
        self._marks: deque[tuple[int, dict[int, int]]] = deque(maxlen=_MARKS_MAX)
        self._ends: dict[bytes, int] = {}

    def begin(self, partition: int, offset: int) -> None:
        """Begin with the updates of a partition from an offset on."""
        self._partitions[partition] = _Partition(offset)

    def add(self, partition: int, key: bytes, old: Record | None, new: Record) -> None:
        """Take the next update of a partition."""
        part = self._partitions[partition]
        part.offsets.append(new.offset)
        part.updates.append(PastUpdate(new.offset, key, old, new))
        size = _ENTRY_BYTES + len(key) + len(new.value or b"") + (0 if old is None else len(old.value or b""))
        self._sizes.append((partition, size))
        self._bytes += size
        while self._bytes > self._bytes_max:
            first, freed = self._sizes.popleft()
            self._bytes -= freed
            self._partitions[first].drop_first()

        if new.value is None:
            self._ends.pop(key, None)
            self._ends[key] = version_of(new.headers) or -1
            if len(self._ends) > _ENDS_MAX:
                del self._ends[next(iter(self._ends))]

    def ended_with(self, key: bytes) -> int:
        """The version with which the record of a key ended last, of the last ends; -1: it is not known."""
        return self._ends.get(key, -1)

    def mark(self, now_ms: int, positions: Positions) -> None:
        """Note the positions before the updates that come at a time."""
        self._marks.append((now_ms, dict(positions)))

    def positions_before(self, time_ms: int) -> Positions | None:
        """The positions before all updates that came at a time or later; None: they are not kept any more."""
        marks = self._marks
        if not marks or marks[0][0] > time_ms:
            return None
        at = bisect_left(marks, time_ms, key=_time)
        return marks[at][1] if at < len(marks) else None

    def reaches(self, positions: Positions) -> bool:
        """Return whether all updates since these positions are kept."""
        return positions.keys() == self._partitions.keys() and all(
            position >= self._partitions[partition].floor for partition, position in positions.items()
        )

    def count_since(self, positions: Positions) -> int:
        """The number of updates since these positions."""
        parts = [(self._partitions[partition], position) for partition, position in positions.items()]
        return sum(len(part.offsets) - bisect_left(part.offsets, at, lo=part.dropped) for part, at in parts)

    def since(self, positions: Positions) -> Iterator[tuple[int, PastUpdate]]:
        """The updates since these positions, in order within each partition, with the partition's number."""
        for partition, position in positions.items():
            part = self._partitions[partition]
            begin = bisect_left(part.offsets, position, lo=part.dropped)
            for update in part.updates[begin:]:
                yield partition, update


def _time(mark: tuple[int, dict[int, int]]) -> int:
    return mark[0]
