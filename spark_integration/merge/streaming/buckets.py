"""Keeps many keys in each row of a Spark map state, as every row that Python reads or writes costs some 50 µs.

    name             value
    size             number of buckets, bytes of all entries,
                     number of entries                            three little-endian uint64
    <n>, decimal     the entries of bucket n                      a pickled dict of a key to an entry

The key's CRC-32 chooses the bucket by linear hashing (Litwin 1980): the number of buckets grows with the bytes of all
entries, and a new bucket takes its keys from one old bucket. A partition of 1,000,000 records of 200 bytes has 60,000
buckets; a micro-batch of 1,000 records reads at most 1,000 of them, and one of 100,000 records over 30,000 keys reads
each bucket once.
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Final, TypeAlias
from zlib import crc32

from processor.errors import Stop
from spark_integration.merge.streaming.bulk import short_value
from spark_integration.plain_pickle import load_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_integration.merge.streaming.bulk import BulkMap

Entry: TypeAlias = tuple[int, bytes, int, int, bytes, int] | tuple[int, bytes, int, int, bytes, int, bytes]
"""The fields of `Stored`, with the time at which its key stands in the index of expiring records, or 0, as the sixth.

An entry without `group_stamps` has no seventh field.
"""

BUCKET_BYTES: Final = 4 * 1024
"""Average size of a bucket: larger ones are read and written for a few keys, smaller ones are more requests."""

SIZE: Final = b"size"
"""The name of the row with the sizes."""
_SIZES: Final = struct.Struct("<QQQ")
_ENTRY_BYTES: Final = 32
"""About the bytes of an entry besides its key and its value."""


class Buckets:
    """The records of one partition, during one micro-batch."""

    def __init__(self, rows: BulkMap, former: BulkMap) -> None:
        """Create it; nothing is read yet.

        Args:
            rows: the map state of the rows above.
            former: the map state of earlier versions, which kept each key in a row of its own.
        """
        self._rows, self._former = rows, former
        self._loaded: dict[int, dict[bytes, Entry]] = {}
        self._count = self._bytes = self._entries = 0

    def get_many(self, keys: Iterable[bytes]) -> list[tuple[bytes, Entry | None]]:
        """The entry of each key; None for a missing one.

        Raises:
            Stop: the state is of an earlier version.
        """
        if not self._count:
            self._read_size()
        count = self._count
        numbers = [(key, number_of(key, count)) for key in keys]
        self._load({number for _, number in numbers})
        loaded = self._loaded
        return [(key, loaded[number].get(key)) for key, number in numbers]

    def put_many(self, changes: Mapping[bytes, Entry | None]) -> None:
        """Write entries to Spark's store, None removes a key; forget those that were read."""
        before = dict(self.get_many(changes))
        count, loaded = self._count, self._loaded
        changed: set[int] = set()
        for key, entry in changes.items():
            number = number_of(key, count)
            changed.add(number)
            if entry is None:
                loaded[number].pop(key, None)
            else:
                loaded[number][key] = entry
            self._bytes += _bytes_of(key, entry) - _bytes_of(key, before[key])
            self._entries += (entry is not None) - (before[key] is not None)
        changed |= self._grow()
        rows: dict[bytes, bytes | None] = {SIZE: _SIZES.pack(self._count, self._bytes, self._entries)}
        for number in sorted(changed):
            entries = loaded[number]
            rows[b"%d" % number] = pickle.dumps(entries, pickle.HIGHEST_PROTOCOL) if entries else None
        self._rows.put_many(rows)
        self._loaded = {}

    def _grow(self) -> set[int]:
        """Add buckets until their average size is right again; returns the changed ones."""
        before = self._count
        after = max(before, -(-self._bytes // BUCKET_BYTES))
        if after == before:
            return set()
        divided = {bucket_of(number, before) for number in range(before, after)}
        self._load(divided)
        self._count = after
        added: dict[int, dict[bytes, Entry]] = {number: {} for number in range(before, after)}
        for number in divided:
            entries = self._loaded[number]
            for key in list(entries):
                if (other := number_of(key, after)) != number:
                    added[other][key] = entries.pop(key)
        self._loaded |= added
        return divided | added.keys()

    def _load(self, numbers: Iterable[int]) -> None:
        missing = {b"%d" % number: number for number in sorted(numbers) if number not in self._loaded}
        for name, row in self._rows.get_many(list(missing)).items():
            self._loaded[missing[name]] = {} if row is None else load_plain(row, "a bucket of records")

    def _read_size(self) -> None:
        row = self._rows.get_many([SIZE])[SIZE]
        if row is not None:
            self._count, self._bytes, self._entries = _SIZES.unpack(row)
            return
        if self._former.has_rows():
            raise Stop(
                "the checkpoint is of an earlier merge_stream, whose state cannot be read. Let that version finish all "
                "input, stop it, and start with a new checkpointLocation, initial='sow', and as startingOffsets the "
                "`endOffset` of its last micro-batch, which is in the newest file of the old checkpoint's directory "
                "`offsets`"
            )
        self._count = 1


def entries_in(row: bytes) -> int:
    """The number of entries in all buckets, by the row of sizes as Spark's map state has it."""
    entries: int = _SIZES.unpack(short_value(row))[2]
    return entries


def number_of(key: bytes, count: int) -> int:
    """The bucket of a key among so many."""
    return bucket_of(crc32(key), count)


def bucket_of(number: int, count: int) -> int:
    """The bucket of a number among so many: its last bits, one fewer where that bucket is not there yet."""
    bits = count.bit_length()
    bucket = number & (1 << bits) - 1
    return bucket if bucket < count else number & (1 << bits - 1) - 1


def _bytes_of(key: bytes, entry: Entry | None) -> int:
    return 0 if entry is None else len(key) + len(entry[1]) + _ENTRY_BYTES
