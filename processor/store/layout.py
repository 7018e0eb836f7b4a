"""The format of every byte on disk.

A partition's directory holds `lock` (held by the process that uses it; its time is that of the last use) and
`rocksdb/`, or `rocksdb.former/` while a database that is not needed any more is removed. In RocksDB, one column family:

    key                value
    m format           the number below, ASCII decimal
    m identity         the SOW topic and partition it is a cache of, UTF-8 `topic/partition/topic id`
    m progress         position, applied_at_ms                          two little-endian int64
    m closed           nothing: it was closed in good order and not written since; gone with the next batch
    e <time> <key>     nothing: the record of the key expires then              big-endian uint64, milliseconds; the key
    r <record key>     version, expires_at_ms, source_offset            three little-endian int64
                       length of texts, texts, value                  little-endian uint16, then the bytes of both

The texts of a record are its expiration and, behind a NUL, its group_stamps; a record without stamps has no NUL.

DO NOT RENUMBER, and raise FORMAT with any change: state in another format is wiped and restored from the SOW topic.
Format 4 has no stamps, and is read: it becomes format 5 when it is opened, so that an earlier version does not read it.
"""

from __future__ import annotations

import struct
from typing import Final

from processor.errors import StateDamaged
from processor.record import Stored
from processor.store.contract import Expiring, Progress

FORMAT: Final = b"5"
READABLE_FORMATS: Final = frozenset((b"4", FORMAT))
FORMAT_KEY: Final = b"mformat"
IDENTITY_KEY: Final = b"midentity"
PROGRESS_KEY: Final = b"mprogress"
CLOSED_KEY: Final = b"mclosed"
EXPIRY_PREFIX: Final = b"e"
AFTER_EXPIRIES: Final = b"f"
RECORD_PREFIX: Final = b"r"
AFTER_RECORDS: Final = b"s"

LOCK_FILE: Final = "lock"
ROCKSDB_DIRECTORY: Final = "rocksdb"
FORMER_DIRECTORY: Final = "rocksdb.former"

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__
RECORD_HEAD: Final = struct.Struct("<qqqH")
"""The head of a record's row: version, expires_at_ms, source_offset, and the size of the texts, which follow."""
_pack_head = RECORD_HEAD.pack
_EXPIRY_HEAD = struct.Struct(">cQ")
_PROGRESS = struct.Struct("<qq")


def encode_record(stored: Stored) -> bytes:
    """Encode a record for the disk."""
    version, value, expires_at_ms, source_offset, texts, group_stamps = stored
    if group_stamps:
        texts += b"\0" + group_stamps
    return RECORD_HEAD.pack(version, expires_at_ms, source_offset, len(texts)) + texts + value


def plain_head(version: int) -> bytes:
    """Encode the head of a record that has a version, and neither an end nor a source."""
    return _pack_head(version, 0, -1, 0)


def decode_record(data: bytes) -> Stored:
    """Decode a record from the disk.

    Raises:
        StateDamaged: it is too short.
    """
    try:
        version, expires_at_ms, source_offset, size = RECORD_HEAD.unpack_from(data)
    except struct.error as error:
        raise StateDamaged(f"a record of {len(data)} bytes is shorter than its head") from error
    begin = RECORD_HEAD.size + size
    if begin > len(data):
        raise StateDamaged(f"a record of {len(data)} bytes is shorter than its texts")
    if not size:
        return _new(Stored, (version, data[begin:], expires_at_ms, source_offset, b"", b""))
    expiration, _, group_stamps = data[RECORD_HEAD.size : begin].partition(b"\0")
    return _new(Stored, (version, data[begin:], expires_at_ms, source_offset, expiration, group_stamps))


def expires_at_ms(data: bytes) -> int:
    """The expiry time in a record from the disk, milliseconds since the epoch; 0 for never.

    Raises:
        StateDamaged: it is too short.
    """
    try:
        return int(RECORD_HEAD.unpack_from(data)[1])
    except struct.error as error:
        raise StateDamaged(f"a record of {len(data)} bytes is shorter than its head") from error


def expiry_row(expiring: Expiring) -> bytes:
    """The index key of a record that expires; these keys sort by time."""
    time_ms, key = expiring
    return _EXPIRY_HEAD.pack(EXPIRY_PREFIX, time_ms) + key


def expiring_of(row: bytes) -> Expiring:
    """Decode a key of the index.

    Raises:
        StateDamaged: it is too short.
    """
    try:
        return _EXPIRY_HEAD.unpack_from(row)[1], row[_EXPIRY_HEAD.size :]
    except struct.error as error:
        raise StateDamaged(f"an index row of {len(row)} bytes is shorter than its time") from error


def identity_parts(data: bytes | None) -> tuple[str | None, int | None, str | None]:
    """Decode the mark of identity: the SOW topic, its partition and its id; None for a part that it lacks."""
    topic, partition, topic_id = None, None, None
    if data is not None:
        topic, _, rest = data.decode(errors="replace").partition("/")
        number, _, topic_id_text = rest.partition("/")
        partition = int(number) if number.isdecimal() else None
        topic_id = topic_id_text or None
    return topic, partition, topic_id


def encode_progress(progress: Progress) -> bytes:
    """Encode progress for the disk."""
    return _PROGRESS.pack(*progress)


def decode_progress(data: bytes) -> Progress:
    """Decode progress from the disk.

    Raises:
        StateDamaged: it has the wrong length.
    """
    try:
        return Progress(*_PROGRESS.unpack(data))
    except struct.error as error:
        raise StateDamaged(f"the progress mark has {len(data)} bytes instead of {_PROGRESS.size}") from error
