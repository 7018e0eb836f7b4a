"""Keeps many keys in each row of a Spark map state, as every row that Python reads or writes costs some 50 µs.

    name             value
    size             number of buckets, bytes of all entries,
                     number of entries                            three little-endian uint64
    <n>, decimal     the entries of bucket n                      a pickled dict of a key to an entry

The key's CRC-32 chooses the bucket by linear hashing (Litwin 1980): the number of buckets grows with the bytes of all
entries, and a new bucket takes its keys from one old bucket. A partition of 1,000,000 records of 200 bytes has 60,000
buckets; a micro-batch of 1,000 records reads at most 1,000 of them, and one of 100,000 records over 30,000 keys reads
each bucket once.

Reads and writes many keys of a Spark map state at once.

PySpark requests one key at a time from the JVM and waits for each answer, some 100 µs; a micro-batch needs thousands.
This class sends the same requests, but many of them before it reads the first answer. It uses undocumented parts of
PySpark; in a version without them, it requests one key at a time.

Before Spark 4.0.2 the JVM takes a request that has arrived in part for a whole one (SPARK-53870). So what is sent at
once arrives at once: it is small, and nothing else is on its way. A long value is stored in parts::

    key                             value
    key                             0x00, value                            a short value
    key                             0x01, number of parts, uint32          a long one
    0xFF, number of the part, key   the part
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

from processor.errors import Stop
from spark_integration.foundation.plain_pickle import load_plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.streaming.stateful_processor import MapState


_REQUESTS_MAX: Final = 256
"""Limit of requests without an answer. The JVM writes an answer before it reads the next request, so the requests must
fit the buffers of the socket."""
_SENT_BYTES_MAX: Final = 32 * 1024
"""Limit of the bytes of requests without an answer: the loopback interface delivers so many whole."""
PART_BYTES: Final = 24 * 1024
"""Longest value that is stored whole, and the length of a part: a request of it is below that limit."""
_WHOLE: Final = b"\x00"
_PARTED: Final = b"\x01"
_PARTS: Final = struct.Struct("<I")
_PART: Final = struct.Struct(">cI")
_FRAME: Final = struct.Struct(">ii")
_VERSION: Final = 0  # Of the messages' format.


class BulkMap:
    """A map state from binary to binary. A key does not begin with 0xFF, which no UTF-8 has."""

    def __init__(self, state: MapState) -> None:
        self._state = state
        self._wire = _Wire.of(state)
        self._parts: dict[bytes, int] = {}  # Of the long values that were read, the number of parts.

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """The values of these keys, None for a missing one."""
        values: dict[bytes, bytes | None] = {}
        parted: dict[bytes, int] = {}
        for key, row in self._rows(keys).items():
            if row is not None and row[:1] == _PARTED:
                (parted[key],) = _PARTS.unpack_from(row, 1)
            values[key] = None if row is None else row[1:]
        if parted:
            self._parts |= parted
            rows = self._rows([name for key, count in parted.items() for name in _names(key, count)])
            values |= {key: b"".join(rows[name] or b"" for name in _names(key, count)) for key, count in parted.items()}
        return values

    def _rows(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        if self._wire is not None:
            return dict(zip(keys, self._wire.get_many(keys), strict=True))
        rows = [(key, self._state.getValue((key,))) for key in keys]
        return {key: None if row is None else bytes(row[0]) for key, row in rows}

    def has_rows(self) -> bool:
        """Return whether any key has a value."""
        return bool(self._state.exists())

    def put_many(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set values; None removes a key. A long value that is replaced must have been read before."""
        rows: dict[bytes, bytes | None] = {}
        for key, value in changes.items():
            parts = 0
            if value is None:
                rows[key] = None
            elif len(value) <= PART_BYTES:
                rows[key] = _WHOLE + value
            else:
                parts = -(-len(value) // PART_BYTES)
                rows[key] = _PARTED + _PARTS.pack(parts)
                begins = range(0, len(value), PART_BYTES)
                rows |= {name: value[at : at + PART_BYTES] for name, at in zip(_names(key, parts), begins, strict=True)}
            before = self._parts.pop(key, 0)
            rows |= dict.fromkeys(_names(key, before)[parts:])
            if parts:
                self._parts[key] = parts
        if self._wire is not None:
            self._wire.put_many(rows)
            return
        for name, row in rows.items():
            if row is None:
                self._state.removeKey((name,))
            else:
                self._state.updateValue((name,), (row,))


def short_value(row: bytes) -> bytes:
    """The value in a row of the map state that is known to be short."""
    assert row[:1] == _WHOLE
    return row[1:]


def _names(key: bytes, count: int) -> list[bytes]:
    """The keys of the parts of a value."""
    return [_PART.pack(b"\xff", part) + key for part in range(count)]


class _Wire:
    """PySpark's connection to the JVM, as its own `MapStateClient` uses it."""

    def __init__(self, name: str, client: Any) -> None:
        import pyspark.sql.streaming.proto.StateMessage_pb2 as messages  # noqa: PLC0415 - needs protobuf
        from pyspark.serializers import CPickleSerializer  # noqa: PLC0415

        self._messages: Any = messages
        self._name = name
        self._socket, self._receive = client.sockfile, client._receive_proto_message  # noqa: SLF001
        pickles: Any = CPickleSerializer()
        self._dumps, self._loads = pickles.dumps, pickles.loads

    @classmethod
    def of(cls, state: MapState) -> _Wire | None:
        """The connection of a state; None where this version of PySpark has another one."""
        try:
            return cls(state._stateName, state._mapStateClient._stateful_processor_api_client)  # noqa: SLF001
        except (AttributeError, ImportError):
            return None

    def get_many(self, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        new = self._messages.GetValue
        questions = ({"getValue": new(userKey=self._dumps((key,)))} for key in keys)
        for answer in self._answers(questions):
            yield bytes(self._loads(answer)[0]) if answer else None

    def put_many(self, changes: Mapping[bytes, bytes | None]) -> None:
        for _ in self._answers(self._change(key, value) for key, value in changes.items()):
            pass

    def _change(self, key: bytes, value: bytes | None) -> dict[str, Any]:
        row = self._dumps((key,))
        if value is None:
            return {"removeKey": self._messages.RemoveKey(userKey=row)}
        return {"updateValue": self._messages.UpdateValue(userKey=row, value=self._dumps((value,)))}

    def _answers(self, requests: Iterator[dict[str, Any]]) -> Iterator[bytes]:
        """Send requests, many at once; yields the value of each answer, in their order."""
        messages = self._messages
        waiting = waiting_bytes = 0
        for request in requests:
            call = messages.MapStateCall(stateName=self._name, **request)
            variable = messages.StateVariableRequest(mapStateCall=call)
            data = messages.StateRequest(stateVariableRequest=variable).SerializeToString()
            if waiting == _REQUESTS_MAX or waiting_bytes + len(data) > _SENT_BYTES_MAX:
                yield from self._receive_many(waiting)
                waiting = waiting_bytes = 0
            self._socket.write(_FRAME.pack(_VERSION, len(data)) + data)
            waiting, waiting_bytes = waiting + 1, waiting_bytes + len(data)
        yield from self._receive_many(waiting)

    def _receive_many(self, count: int) -> Iterator[bytes]:
        self._socket.flush()
        for _ in range(count):
            status, error, value = self._receive()
            if status != 0:
                raise RuntimeError(f"Spark's state {self._name!r} failed: {error}")
            answer: bytes = value
            yield answer


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
