"""Reads single records out of Kafka's record batches (format 2), as share fetches return them.

A broker sends the batches of its log in full, also where a member was given a few records of each. kafka-python decodes
every record of a batch; with batches of thousands of records, read by many members, most of them would be decoded for
nothing. Here they are stepped over.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kafka import codec

from processor.errors import Stop
from processor.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from processor.record import Headers

_HEAD: Final = Struct(">qiibIhiqqqhii")
_LENGTH_END: Final = 12  # The offset and the length; the length counts the bytes behind it.
_CODEC, _LOG_APPEND_TIME, _CONTROL = 0x07, 0x08, 0x20
_UNPACK: Final[dict[int, tuple[str, Callable[[], bool], str]]] = {
    1: ("gzip", codec.has_gzip, "gzip_decode"),
    2: ("snappy", codec.has_snappy, "snappy_decode"),
    3: ("lz4", codec.has_lz4, "lz4_decode"),
    4: ("zstd", codec.has_zstd, "zstd_decode"),
}


class AcquiredRange(NamedTuple):
    """A run of offsets that a fetch has leased to us."""

    first: int
    """The first offset."""
    last: int
    """The last one."""
    deliveries: int
    """Number of deliveries, this one included."""


class Acquired(NamedTuple):
    """The contents of one partition of a fetch."""

    records: list[tuple[Record, int]]
    """The records that are leased to us, in order, and the number of their deliveries."""
    gaps: list[tuple[int, int]]
    """Runs of leased offsets without a record, first and last: the markers of transactions, and compacted records."""
    unseen: list[tuple[int, int]]
    """Runs of leased offsets that lie behind the last batch that came."""
    unreadable: list[tuple[int, int, str]]
    """Runs of leased offsets whose batch cannot be unpacked or parsed, with the reason."""


class _Unreadable(Exception):
    """One batch cannot be read."""


def read_acquired(data: memoryview | bytes | None, ranges: Sequence[AcquiredRange]) -> Acquired:
    """Read the leased records of one partition.

    Args:
        data: record batches in order; the last one may be cut off.
        ranges: the leased offsets, in order and disjoint.

    Raises:
        Stop: this installation cannot read such batches.
    """
    records: list[tuple[Record, int]] = []
    unreadable: list[tuple[int, int, str]] = []
    end = -1
    view = memoryview(data or b"")
    if ranges:
        for head, body in _batches(view):
            base, last = head[0], head[0] + head[6]
            end = last + 1
            if head[5] & _CONTROL:
                continue
            wanted = [each for each in ranges if each.first <= last and each.last >= base]
            try:
                if wanted:
                    records += list(_read_batch(head, body, wanted))
            except _Unreadable as error:
                unreadable += [(max(each.first, base), min(each.last, last), str(error)) for each in wanted]
    offsets = [record.offset for record, _ in records]
    for first, final, _ in unreadable:
        offsets += range(first, final + 1)
    return Acquired(records, *_missing(ranges, sorted(offsets), end), unreadable)


def _batches(data: memoryview) -> Iterator[tuple[tuple[int, ...], memoryview]]:
    """The head and the records of each complete batch."""
    at = 0
    while at + _HEAD.size <= len(data):
        head = _HEAD.unpack_from(data, at)
        end = at + _LENGTH_END + head[1]
        if end > len(data) or head[1] < _HEAD.size - _LENGTH_END:
            return
        if head[3] != 2:
            raise Stop(f"a record batch of format {head[3]}, at offset {head[0]}: no Kafka with share groups has these")
        yield head, data[at + _HEAD.size : end]
        at = end


def _read_batch(
    head: tuple[int, ...], body: memoryview, wanted: Sequence[AcquiredRange]
) -> Iterator[tuple[Record, int]]:
    base, attributes, last_delta, first_ms, max_ms, count = head[0], head[5], head[6], head[7], head[8], head[12]
    data = _unpacked(attributes & _CODEC, body, base)
    time_ms = max_ms if attributes & _LOG_APPEND_TIME else None
    is_dense = count == last_delta + 1  # Then the place in the batch tells the offset.
    at, turn = 0, iter(wanted)
    each: AcquiredRange | None = next(turn, None)
    try:
        for index in range(count):
            length, body_at = _varint(data, at)
            next_at = body_at + length
            if is_dense:
                offset = base + index
            else:
                delta, _ = _varint(data, _varint(data, body_at + 1)[1])
                offset = base + delta
            while each is not None and each.last < offset:
                each = next(turn, None)
            if each is None:
                return
            if each.first <= offset:
                yield _record(data, body_at + 1, next_at, offset, first_ms, time_ms), each.deliveries
            at = next_at
    except IndexError as error:
        raise _Unreadable(f"the batch at offset {base} cannot be read: {error}") from error


def _unpacked(kind: int, body: memoryview, base: int) -> bytes:
    if not kind:
        return bytes(body)
    name, is_there, function = _UNPACK.get(kind, (f"number {kind}", bool, ""))
    if not is_there():
        raise Stop(
            f"messages are compressed by {name}, which this installation cannot read: "
            "pip install 'kafka-python[lz4,snappy,zstd]'"
        )
    try:
        return bytes(getattr(codec, function)(bytes(body)))
    except Exception as error:  # Each library has errors of its own.
        raise _Unreadable(f"the batch at offset {base}, compressed by {name}, cannot be read: {error}") from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number of variable length, and the place behind it."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + 1
        shift += 7


def _record(data: bytes, at: int, end: int, offset: int, first_ms: int, time_ms: int | None) -> Record:
    """Read a record, from its time on."""
    delta_ms, at = _varint(data, at)
    _, at = _varint(data, at)
    key, at = _bytes(data, at)
    value, at = _bytes(data, at)
    count, at = _varint(data, at)
    headers: Headers | None = None
    if count > 0:
        headers = []
        for _ in range(count):
            size, at = _varint(data, at)
            # As librdkafka reads a name, to its first NUL; one that is not UTF-8 has U+FFFD, as in `UNREADABLE_NAME`.
            name = data[at : at + size].partition(b"\0")[0].decode(errors="replace")
            text, at = _bytes(data, at + size)
            headers.append((name, text))
    if at != end:
        raise IndexError(f"the record at offset {offset} is not as long as it says")
    return Record(key, value, headers, offset, first_ms + delta_ms if time_ms is None else time_ms)


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _missing(
    ranges: Sequence[AcquiredRange], offsets: Sequence[int], end: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The leased runs of offsets without a record: those before `end`, and those from there on."""
    gaps: list[tuple[int, int]] = []
    unseen: list[tuple[int, int]] = []
    at, present = 0, len(offsets)
    for first, last, _ in ranges:
        begin = first
        while begin <= last:
            stop = offsets[at] if at < present and offsets[at] <= last else last + 1
            if begin < stop:
                if begin < end:
                    gaps.append((begin, min(stop, end) - 1))
                if stop > end:
                    unseen.append((max(begin, end), stop - 1))
            at += stop <= last
            begin = stop + 1
    return gaps, unseen
