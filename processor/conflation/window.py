"""The keys whose interval runs, in the order in which it began."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.merge import Touched
    from processor.record import Record

KEY_BYTES: Final = 340
"""What a key takes that waits: its place in the window, its `Pending`."""

UPDATE_BYTES: Final = 450
"""What an update takes beside its value: its tuple, its key, a few short headers."""

UNREAD_MAX: Final = 32
"""Updates of one key that wait unread: more are read, and all but the last of them forgotten."""


class Pending:
    """The updates of one key that wait for the end of its interval; the last one counts.

    Updates are read when the key is due, or when many have come. Read together they cost less than one by one, and
    bytes that wait cost less than what they mean.
    """

    __slots__ = ("began_ms", "count", "first_offset", "first_timestamp_ms", "last", "touched", "unread")

    def __init__(self, began_ms: int, first: Record) -> None:
        self.began_ms = began_ms
        """When the interval began."""
        self.first_offset = first.offset
        """The offset of the first update: where somebody must begin to read who has none of them."""
        self.unread = [first]
        """Updates nobody has looked at, in order."""
        self.last: Record | None = None
        """The last one that was read and is good; it comes before those unread."""
        self.count = 0
        """How many good ones were read."""
        self.first_timestamp_ms = 0
        """Kafka's timestamp of the first good one."""
        self.touched: Touched = {}
        """Where one that was read is not what was delivered before."""

    @property
    def held(self) -> list[Record]:
        """The updates that are kept."""
        return self.unread if self.last is None else [self.last, *self.unread]

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        held = self.held
        return KEY_BYTES + UPDATE_BYTES * len(held) + sum([len(record.value or b"") for record in held])


class Window:
    """Pending updates by key; those of the longest wait first, which are those that are due first.

    All intervals of a window are equally long at any one time, so the order of their beginnings is the order of their
    ends: no timer and no search, however many there are.
    """

    def __init__(self, *, keys_max: int, bytes_max: int) -> None:
        """Make an empty one.

        Args:
            keys_max: how many keys may wait.
            bytes_max: how much memory their updates may take.
        """
        self.pending: OrderedDict[bytes, Pending] = OrderedDict()
        """By key; `add` and `pop` change it, the hot loop of `Conflate` reads it."""
        self.size_bytes = 0
        """About how much memory all of it takes."""
        self._keys_max = keys_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self.pending)

    @property
    def oldest(self) -> Pending | None:
        """The one that has waited longest."""
        return next(iter(self.pending.values()), None)

    def begin(self, key: bytes, record: Record, now_ms: int) -> Pending:
        """The first update of a key that is idle: its interval begins."""
        made = self.pending[key] = Pending(now_ms, record)
        self.size_bytes += KEY_BYTES
        return made

    def grew(self, records: Iterable[Record]) -> None:
        """Account for updates that have come; for a whole batch, so that no step of it is paid for each."""
        sizes = [len(record.value or b"") + UPDATE_BYTES for record in records]
        self.size_bytes += sum(sizes)

    def shrank(self, pending: Pending, from_bytes: int) -> None:
        """Account for updates of a key that were read and forgotten; it took so much before."""
        self.size_bytes += pending.size_bytes - from_bytes

    def pop(self, key: bytes) -> Pending:
        """End a key's interval."""
        pending = self.pending.pop(key)
        self.size_bytes -= pending.size_bytes
        return pending

    def due(self, began_until_ms: int, keys_max: int) -> dict[bytes, Pending]:
        """End the intervals that began until then, at most so many, the oldest first."""
        found: dict[bytes, Pending] = {}
        while self.pending and len(found) < keys_max:
            key, pending = self.pending.popitem(last=False)
            if pending.began_ms > began_until_ms:
                self.pending[key] = pending
                self.pending.move_to_end(key, last=False)
                break
            found[key] = pending
        self.size_bytes -= sum([pending.size_bytes for pending in found.values()])
        return found

    @property
    def is_heavy(self) -> bool:
        """Whether its updates take too much memory."""
        return self.size_bytes > self._bytes_max

    @property
    def overtaken(self) -> dict[bytes, Pending]:
        """Keys of which more than one update is kept: read, they take less."""
        return {key: pending for key, pending in self.pending.items() if len(pending.held) > 1}

    def overflow(self, keys_max: int, *, leave_room: bool = False) -> dict[bytes, Pending]:
        """End intervals before their time, the oldest first, at most so many; none unless the window is too full.

        Args:
            keys_max: how many.
            leave_room: until a tenth of the memory is free.
        """
        bytes_max = self._bytes_max * 9 // 10 if leave_room else self._bytes_max
        found: dict[bytes, Pending] = {}
        while (len(self.pending) > self._keys_max or self.size_bytes > bytes_max) and len(found) < keys_max:
            key, pending = self.pending.popitem(last=False)
            self.size_bytes -= pending.size_bytes
            found[key] = pending
        return found

    def shift(self, by_ms: int) -> None:
        """The clock was set back by so much: what waits has waited as long as before."""
        for pending in self.pending.values():
            pending.began_ms -= by_ms
