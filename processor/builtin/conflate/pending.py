"""The keys whose interval runs, in the order in which it began."""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct
from typing import TYPE_CHECKING, Final

from processor.record import Record
from processor.wire.record_headers import PLAIN_DIGITS_MAX, headers_of_digits

if TYPE_CHECKING:
    from processor.merge import Touched
    from processor.record import Headers

KEY_BYTES: Final = 640
"""Memory of a key that waits: its entry in the dictionary and its `Pending` with all its parts."""

UPDATE_BYTES: Final = 90
"""Memory of an update without its value."""

HEADERS_BYTES: Final = 450
"""More memory of an update whose headers are kept, besides the bytes of their names and values."""

UNREAD_MAX: Final = 32
"""Updates of one key that wait unread: more are read, and all but the last of them forgotten."""

_HEAD: Final = Struct(f"<qq{PLAIN_DIGITS_MAX}s")

pack_head: Final = _HEAD.pack
"""Offset, timestamp and the version's digits of an update; no digits where its headers are kept."""


class Pending:
    """The updates of one key that wait for the end of its interval; the last one counts.

    Updates are read when the key is due, or when many have come. Read together they cost less than one by one, and
    bytes that wait cost less than parsed records.

    Those unread are taken apart, and most of them have only two parts to keep: a value and a packed head. A second
    later a record's nine objects lie all over the memory, and to fetch each, if only to free it, takes longer than to
    parse the record.
    """

    __slots__ = (
        "began_ms",
        "count",
        "first_offset",
        "first_timestamp_ms",
        "headers",
        "heads",
        "key",
        "last",
        "touched",
        "value_bytes",
        "values",
    )

    def __init__(self, key: bytes, began_ms: int, first_offset: int) -> None:
        self.key = key
        """The Kafka record key."""
        self.began_ms = began_ms
        """Begin of the interval."""
        self.first_offset = first_offset
        """The offset of the first update: a successor that has none of them begins to read there."""
        self.values: list[bytes | None] = []
        """The values of the unread updates, in order;"""
        self.heads = bytearray()
        """offset, timestamp and version of each, packed by `pack_head`; no version where headers are kept;"""
        self.headers: dict[int, Headers | None] | None = None
        """the headers of those that have not just a version, by place among the values; None: there are none;"""
        self.value_bytes = 0
        """and about how much memory their values and their headers take."""
        self.last: Record | None = None
        """The last one that was read and is good; it comes before those unread."""
        self.count = 0
        """Number of valid ones that were read."""
        self.first_timestamp_ms = 0
        """Kafka's timestamp of the first good one."""
        self.touched: Touched = {}
        """The paths where an update that was read differs from the record delivered before."""

    def keep_headers(self, headers: Headers | None) -> int:
        """Keep the headers of the update that comes next; return about how much memory they take."""
        if self.headers is None:
            self.headers = {}
        self.headers[len(self.values)] = headers
        size_bytes = _size_bytes(headers)
        self.value_bytes += size_bytes
        return size_bytes

    @property
    def unread_timestamp_ms(self) -> int:
        """Kafka's timestamp of the first unread update."""
        timestamp_ms: int = _HEAD.unpack_from(self.heads)[1]
        return timestamp_ms

    def unread(self, place: int) -> Record:
        """Return one of the unread updates, as it came."""
        offset, timestamp_ms, padded = _HEAD.unpack_from(self.heads, place * _HEAD.size)
        version = padded.rstrip(b"\0")
        headers: Headers | None = headers_of_digits(version) if version else (self.headers or {})[place]
        return Record(self.key, self.values[place], headers, offset, timestamp_ms)

    def forget_unread(self, last: Record | None) -> None:
        """Drop the unread updates, which were read just now; `last` is the last good one of the interval."""
        self.values, self.heads, self.headers, self.value_bytes = [], bytearray(), None, 0
        self.last = last

    @property
    def held(self) -> int:
        """Number of updates that are kept."""
        return len(self.values) + (self.last is not None)

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        last = self.last
        last_bytes = 0 if last is None else _size_bytes(last.headers) + len(last.value or b"")
        return KEY_BYTES + UPDATE_BYTES * self.held + self.value_bytes + last_bytes


def _size_bytes(headers: Headers | None) -> int:
    """About how much memory an update's headers take."""
    return HEADERS_BYTES + sum([len(name) + len(value or b"") for name, value in headers or ()])


class PendingUpdates:
    """The pending updates by key, those with the longest wait first, which are due first.

    All intervals are equally long at any one time, so the order of their beginnings is the order of their
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
        """About how much memory all updates take."""
        self._keys_max = keys_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        """Number of keys that wait."""
        return len(self.pending)

    @property
    def oldest(self) -> Pending | None:
        """The key that has waited longest."""
        return next(iter(self.pending.values()), None)

    def begin(self, key: bytes, offset: int, now_ms: int) -> Pending:
        """Begin the interval of an idle key with its first update."""
        pending = self.pending[key] = Pending(key, now_ms, offset)
        self.size_bytes += KEY_BYTES
        return pending

    def grew(self, updates: int, value_bytes: int) -> None:
        """Account for updates that have come; for a whole batch, so that no step of it is paid for each."""
        self.size_bytes += updates * UPDATE_BYTES + value_bytes

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
        due: dict[bytes, Pending] = {}
        while self.pending and len(due) < keys_max:
            key, pending = self.pending.popitem(last=False)
            if pending.began_ms > began_until_ms:
                self.pending[key] = pending
                self.pending.move_to_end(key, last=False)
                break
            due[key] = pending
        self.size_bytes -= sum([pending.size_bytes for pending in due.values()])
        return due

    @property
    def is_heavy(self) -> bool:
        """True if its updates take too much memory."""
        return self.size_bytes > self._bytes_max

    @property
    def overtaken(self) -> dict[bytes, Pending]:
        """Keys of which more than one update is kept: read, they take less."""
        return {key: pending for key, pending in self.pending.items() if pending.held > 1}

    def overflow(self, keys_max: int, *, leave_room: bool = False) -> dict[bytes, Pending]:
        """End intervals before their time, the oldest first, at most so many; none unless there are too many.

        Args:
            keys_max: how many.
            leave_room: until a tenth of the memory is free.
        """
        bytes_max = self._bytes_max * 9 // 10 if leave_room else self._bytes_max
        overflow: dict[bytes, Pending] = {}
        while (len(self.pending) > self._keys_max or self.size_bytes > bytes_max) and len(overflow) < keys_max:
            key, pending = self.pending.popitem(last=False)
            self.size_bytes -= pending.size_bytes
            overflow[key] = pending
        return overflow

    def shift(self, by_ms: int) -> None:
        """Adjust to a clock that was set back: updates have waited as long as before."""
        for pending in self.pending.values():
            pending.began_ms -= by_ms
