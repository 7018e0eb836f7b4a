"""One partition of a view on disk: delivered records in RocksDB, newer ones in memory.

A row is that of `store/layout.py`, with two fields used in this way:

    source_offset   the record's offset in the SOW topic
    value           the record's Kafka timestamp, 8 bytes little-endian, milliseconds; the size of its headers, 4 bytes;
                    of each header but version and kind its name and its value, each behind its size, 4 bytes, which is
                    2^32 - 1 for no value; then the record's own value
    expires_at_ms   0: the view forgets a record when its tombstone comes, not by the clock

A change of this layout raises `ROW_FORMAT`: a view with other rows is wiped.
"""

from __future__ import annotations

import os
import struct
import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from processor.errors import StateDamaged
from processor.record import Record, Stored
from processor.store.contract import Progress, past_ms
from processor.store.layout import RECORD_HEAD, decode_record, encode_record
from processor.wire.record_headers import VERSION_AND_KIND, headers_of_version, version_of

try:
    from processor.client.feeds.stored_rows import records_of

    has_compiled = sys.byteorder == "little" and not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from processor.record import Headers
    from processor.store.rocksdb import RocksStore

ROW_FORMAT: Final = 2
"""The number of this layout."""
_HEAD: Final = struct.Struct("<qI")
_PLAIN_HEAD: Final = struct.Struct(RECORD_HEAD.format + _HEAD.format[1:])
"""The heads of the row and of its value; the latter begins here only in a row without an expiration."""
_new = tuple.__new__  # Record(...) goes through a function written in Python.
_SIZE: Final = struct.Struct("<I")
_NO_VALUE: Final = 2**32 - 1
_PIECE_ROWS: Final = 50
_PIECE_BYTES: Final = 64 * 1024
"""Rows that are read at a time: few of them, as a row may have a megabyte, and who reads may have other work."""
_NOT_PLAIN: Final = (0, 0, 0, 0, 0, 0)  # A row that is shorter than the heads.
_ENTRY_BYTES: Final = 256  # Approximate memory of a record besides its value.
_IN_THE_ROW: Final = VERSION_AND_KIND


class StoredPartition:
    """The last record of every key of one partition.

    ::

        fresh      received, not delivered yet, never written: after a restart it is delivered again
        delivered  delivered, waits to be written with others
        store      on disk, with the offset that it has reached
    """

    def __init__(self, store: RocksStore) -> None:
        """Create the layers above a store, which belongs to the partition from then on."""
        self._store = store
        self._fresh: dict[bytes, Record] = {}
        self._delivered: dict[bytes, Record] = {}
        progress = store.progress()
        self.position = progress.position
        """The next offset to take."""
        self._as_of_ms = progress.applied_at_ms
        self._delivered_position, self._delivered_as_of_ms = progress
        self.waiting_bytes = 0
        """Approximate memory of the records that wait to be written; repeated changes of a key count each time."""

    @property
    def progress(self) -> Progress:
        """The position that is on disk."""
        return self._store.progress()

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Record | None]:
        """The records of these keys.

        Raises:
            StateDamaged: rows on disk cannot be read.
        """
        records: dict[bytes, Record | None] = {}
        missing = []
        for key in keys:
            record = self._fresh.get(key) or self._delivered.get(key)
            if record is None:
                missing.append(key)
            else:
                records[key] = None if record.value is None else record
        if missing:
            rows = self._store.get_many(missing)
            records |= {
                key: None if stored is None else _record(key, stored) for key, stored in zip(missing, rows, strict=True)
            }
        return records

    def put(self, records: Sequence[Record]) -> None:
        """Take the next records, at least one."""
        self._fresh.update({record[0]: record for record in records if record[0] is not None})
        self.waiting_bytes += sum([len(record[1] or b"") for record in records]) + len(records) * _ENTRY_BYTES
        last = records[-1]
        self.position, self._as_of_ms = last.offset + 1, last.timestamp_ms

    def reached(self, position: int, as_of_s: float) -> None:
        """Move to an offset before which nothing is left to take, as of a time in seconds since the epoch."""
        self.position = max(self.position, position)
        self._as_of_ms = int(as_of_s * 1000)

    def settle(self) -> None:
        """Mark all records as delivered."""
        if self._delivered:
            self._delivered.update(self._fresh)
        else:
            self._delivered = self._fresh
        self._fresh = {}
        self._delivered_position, self._delivered_as_of_ms = self.position, self._as_of_ms

    def write(self) -> None:
        """Write the delivered records to disk, as far as they are not there.

        Raises:
            StateDamaged: it cannot be written.
            DiskUnusable: the disk takes no more.
        """
        progress = Progress(self._delivered_position, past_ms(self._delivered_as_of_ms))
        rows = {key: None if record.value is None else _row(record) for key, record in self._delivered.items()}
        self._store.load(rows, progress, is_many=False)
        self._delivered = {}
        self.waiting_bytes = sum([len(record.value or b"") + _ENTRY_BYTES for record in self._fresh.values()])

    def write_and_flush(self) -> None:
        """Write the delivered records to disk, in a way that a killed process does not lose; errors as `write`."""
        moves = bool(self._delivered) or self._store.progress().position != self._delivered_position
        self.write()
        if moves:
            self._store.flush()

    def scan(self) -> Iterator[Record]:
        """Every record as it is now, unaffected by later puts and writes.

        Raises:
            StateDamaged: rows on disk cannot be read.
        """
        over = {**self._delivered, **self._fresh}
        stored = self._store.scan_rows()
        first = next(stored, None)  # The store looks at the rows of the moment when the first of them is asked for.
        return chain.from_iterable(_overlaid(first, stored, over))

    def wipe(self) -> None:
        """Forget everything."""
        self._store.wipe()
        self._fresh, self._delivered, self.waiting_bytes = {}, {}, 0
        self.position = self._delivered_position = self._as_of_ms = self._delivered_as_of_ms = 0

    def close(self, *, keeps: bool) -> None:
        """Release the directory; write delivered records first if the view is kept."""
        try:
            if keeps:
                self.write()
        finally:
            self._store.close()


def _overlaid(
    first: tuple[bytes, bytes] | None, stored: Iterator[tuple[bytes, bytes]], over: dict[bytes, Record]
) -> Iterator[list[Record]]:
    """The records of the rows on disk that no newer record replaces, in pieces, followed by the newer records."""
    rows = stored if first is None else chain((first,), stored)
    has_ended = False
    while not has_ended:
        records, has_ended = _records_of(
            rows, _PIECE_ROWS, _PIECE_BYTES, over, Record, headers_of_version, _record_of_row
        )
        yield records
    yield [record for record in over.values() if record.value is not None]


def _records_in_python(
    rows: Iterator[tuple[bytes, bytes]],
    rows_max: int,
    bytes_max: int,
    over: dict[bytes, Record],
    record_type: type[Record],
    headers_of: Callable[[int], Headers],  # noqa: ARG001 - as the compiled function has it
    other: Callable[[bytes, bytes], Record],
) -> tuple[list[Record], bool]:
    """`stored_rows.records_of`, where it could not be compiled.

    Almost every row is plain: its record has a version, a value and no other header, which is read in one step.
    """
    unpack, begin = _PLAIN_HEAD.unpack_from, _PLAIN_HEAD.size
    records = []
    for key, row in islice(rows, rows_max):
        bytes_max -= len(row)
        if key not in over:
            version, _, offset, expiration_size, timestamp_ms, headers_size = (
                unpack(row) if len(row) >= begin else _NOT_PLAIN
            )
            if not expiration_size and not headers_size and version > 0:
                records.append(_new(record_type, (key, row[begin:], headers_of_version(version), offset, timestamp_ms)))
            else:
                records.append(other(key, row))
        rows_max -= 1
        if bytes_max <= 0:
            return records, False
    return records, rows_max > 0


_records_of = records_of if has_compiled else _records_in_python


def _record_of_row(key: bytes, row: bytes) -> Record:
    return _record(key, decode_record(row))


def _row(record: Record) -> bytes:
    """The stored form of a record."""
    headers = b"".join([_sized(name, value) for name, value in record.headers or () if name not in _IN_THE_ROW])
    value = _HEAD.pack(record.timestamp_ms, len(headers)) + headers + (record.value or b"")
    return encode_record(Stored(version_of(record.headers) or 0, value, 0, record.offset))


def _sized(name: str, value: bytes | None) -> bytes:
    text = name.encode(errors="surrogatepass")
    size = _NO_VALUE if value is None else len(value)
    return _SIZE.pack(len(text)) + text + _SIZE.pack(size) + (value or b"")


def _record(key: bytes, stored: Stored) -> Record:
    """A record read from disk, with the headers that its message needs."""
    value = stored.value
    try:
        timestamp_ms, size = _HEAD.unpack_from(value)
        begin = _HEAD.size + size
        headers: Headers = headers_of_version(stored.version) if stored.version else []
        if size:
            headers += _headers(value[_HEAD.size : begin])
        if begin > len(value):
            raise ValueError("it ends within its headers")
    except (struct.error, ValueError) as error:
        raise StateDamaged(f"a record of {len(value)} bytes is none of a view: {error}") from error
    return Record(key, value[begin:], headers or None, stored.source_offset, timestamp_ms)


def _headers(data: bytes) -> Headers:
    """The headers of a row.

    Raises:
        struct.error: the headers end too early.
        ValueError: a name is not text.
    """
    headers: Headers = []
    at = 0
    while at < len(data):
        parts: list[bytes | None] = []
        for _ in range(2):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            end = at if size == _NO_VALUE else at + size
            if end > len(data):
                raise ValueError("a header ends behind the headers")
            parts.append(None if size == _NO_VALUE else data[at:end])
            at = end
        name, value = parts
        if name is None:
            raise ValueError("a header has no name")
        headers.append((name.decode(errors="surrogatepass"), value))
    return headers
