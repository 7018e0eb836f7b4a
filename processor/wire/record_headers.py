"""The headers of SOW and delta records, as every writer writes them, and those of SOW records, as they are read.

Restores, conflated topics and tools read the latter. `subscriber_headers` reads what subscribers get.

=====================  =====================  =====================  ==================================================
header                 SOW                    delta                  written
=====================  =====================  =====================  ==================================================
`version`              always                 always                 first, or after `expiration` and `expires_at`
`kind`                 not on updates         not on updates         `insert`, `delete`, `expire`
`expires_at`           if it expires          -                      milliseconds since the epoch
`expiration`           if it has its own      -                      seconds, as the publisher sent it
`group_stamps`         if fields are older     -                      see `processor.merge.group_stamps`
`source`               if it is asked for     if it is asked for     the input record it was made of
`correlation_id`       if there is one        if there is one        as the publisher sent it
`delta_base`           -                      not version - 1; not   the version that the delta applies to; 0: no record
                                              on an insert
`removed`, `empty`     -                      as the delta needs     see `removed_header`, `EMPTY`
`conflated`,           conflated topics       conflated topics       updates that became one; time of the first of them
`first_timestamp`
`touched`              conflated topics       -                      see `touched_header`
`as_of`                views, if asked for    views, if asked for    the offsets of the input that a row reflects
=====================  =====================  =====================  ==================================================

The merge loops write a version in place, with `VERSION_NAME`, so that nothing is called for each record. A SOW record
and its delta share a list of headers: a writer that adds a header makes a new list.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from processor.errors import RecordRejected
from processor.record import Headers, Record, Stored
from processor.topics.family import REMOVED_BYTES_MAX as _REMOVED_BYTES_MAX
from processor.wire.headers import OUR_HEADERS, Name, last_value, read_kind, read_number, read_source_offset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.record import Command, Header, Kind


REMOVED_BYTES_MAX: Final = _REMOVED_BYTES_MAX
"""Longest header `removed`: with the record next to it, Kafka must still take it, or the worker would stop for ever."""

VERSION_NAME: Final = Name.VERSION
"""The name of the header with the version, for the merge loops, which make a list of it without a call."""

VERSION_AND_KIND: Final = frozenset((Name.VERSION, Name.KIND))
"""The names of the headers that a version and the presence of a value stand for."""

INSERT: Final[Header] = (Name.KIND, b"insert")
"""The kind of the first record of a life of its key; its delta applies to no record."""

EMPTY: Final[Header] = (Name.EMPTY, b"true")
"""The header of a delta that changes nothing but the version."""

NO_BASE: Final[Header] = (Name.DELTA_BASE, b"0")
"""The header of a delta that applies to no record: it has all of the record."""

SOW_ONLY: Final = frozenset((Name.EXPIRES_AT, Name.EXPIRATION, Name.GROUP_STAMPS))
"""The headers that a SOW record has and its delta record has not: the end of its life, and stamps."""

WRITTEN_BY_PUT: Final = frozenset((Name.VERSION, Name.KIND, Name.EMPTY, Name.REMOVED, Name.DELTA_BASE))
"""The names of the headers that `Context.put` writes, and that a processor may not add to its record."""

NO_CONFLATE: Final[Header] = (Name.NO_CONFLATE, b"true")
"""A publisher's request not to conflate an update."""


def headers_of_version(version: int) -> Headers:
    """Return the headers of an update that has a version and nothing else."""
    return [(Name.VERSION, b"%d" % version)]


def insert_headers(version: int) -> Headers:
    """Return the headers of a new record that begins with a version."""
    return [(Name.VERSION, b"%d" % version), INSERT]


def headers_of_digits(version: bytes) -> Headers:
    """Return the headers of an update that has a version, already as text, and nothing else."""
    return [(Name.VERSION, version)]


def removal_headers(version: int, kind: Kind) -> Headers:
    """Return the headers of a record that is deleted or expires."""
    return [(Name.VERSION, b"%d" % version), (Name.KIND, kind.encode())]


def expires_at_header(expires_at_ms: int) -> Header:
    """Return the header with the time at which a record expires, milliseconds since the epoch."""
    return Name.EXPIRES_AT, b"%d" % expires_at_ms


def expiration_header(seconds: bytes) -> Header:
    """Return the header with a record's own time to live."""
    return Name.EXPIRATION, seconds


def with_end(headers: Headers, expires_at_ms: int, expiration: bytes) -> Headers:
    """Return the headers of a SOW record that expires or has its own time to live; 0 and empty are none."""
    own = [expiration_header(expiration)] if expiration else []
    end = [expires_at_header(expires_at_ms)] if expires_at_ms else []
    return [*own, *end, *headers]


def group_stamps_header(stamps: bytes) -> Header:
    """Return the header with the stamps of a record's sequence groups."""
    return Name.GROUP_STAMPS, stamps


def correlation_id_header(correlation_id: bytes) -> Header:
    """Return the header with a publisher's correlation id."""
    return Name.CORRELATION_ID, correlation_id


def source_header(prefix: bytes, offset: int) -> Header:
    """Return the header with the input record that a record was made of; `prefix` is `topic/partition/`."""
    return Name.SOURCE, b"%b%d" % (prefix, offset)


def command_header(command: Command) -> Header:
    """Return the header with the command: of an input record, or of a delta on a topic without a SOW."""
    return Name.COMMAND, command.encode()


def delta_base_headers(base: int, version: int) -> Headers:
    """Return the header with the version that a delta applies to; none if that is the version before its own."""
    return [] if base == version - 1 else [(Name.DELTA_BASE, b"%d" % base)]


def as_of_header(offsets: Mapping[str, int]) -> Header:
    """Return the header with the prefix of each input partition that a row of a view reflects.

    Args:
        offsets: by `topic/partition`, the offset after the last record that the row reflects.
    """
    return Name.AS_OF, json.dumps(dict(sorted(offsets.items())), separators=(",", ":")).encode()


def conflated_headers(
    version: int, kind: Kind | None, updates: int, first_timestamp_ms: int, source: Header
) -> Headers:
    """Return the headers of one delivery of a conflated topic.

    Args:
        version: the underlying record's version.
        kind: the kind of the delivery; None for an update of a record that was delivered before.
        updates: the number of updates that became one.
        first_timestamp_ms: Kafka's timestamp of the first of them.
        source: the header `source` of the last of them.
    """
    headers: Headers = [(Name.VERSION, b"%d" % version)]
    if kind is not None:
        headers.append((Name.KIND, kind.encode()))
    if updates > 1:
        headers.append((Name.CONFLATED, b"%d" % updates))
    headers.append((Name.FIRST_TIMESTAMP, b"%d" % first_timestamp_ms))
    headers.append(source)
    return headers


def renumbered(headers: Headers, version: int) -> Headers:
    """Return the headers of a SOW record with another version and without its kind."""
    return [(Name.VERSION, b"%d" % version), *(h for h in headers if h[0] not in VERSION_AND_KIND)]


def shared_with_delta(headers: Headers) -> Headers:
    """Return the headers of a SOW record that its delta has too: all but its end, stamps and kind."""
    return [header for header in headers if header[0] not in SOW_ONLY and header[0] != Name.KIND]


def removed_header(pointers: list[str]) -> Header:
    """Return the header with the paths that a delta removes, a JSON array of JSON Pointers.

    Raises:
        RecordRejected: `too_large`: the header would be too long.
    """
    text = json.dumps(pointers).encode()
    if len(text) > REMOVED_BYTES_MAX:
        raise RecordRejected(
            "too_large",
            f"header {Name.REMOVED}: {len(text)} bytes; at most {REMOVED_BYTES_MAX}; "
            "sow_delete the record, then publish it",
        )
    return Name.REMOVED, text


PLAIN_DIGITS_MAX: Final = 18
"""Longest version of an update with a plain head: so many digits are a number of 63 bits, whichever they are."""

_VERSION: Final = Name.VERSION
_KIND: Final = Name.KIND
_PLAIN_LENGTHS: Final = frozenset(range(1, PLAIN_DIGITS_MAX + 1))
_TEXT_BYTES_MAX: Final = 2**16 - 1
"""Longest text that a store holds."""


class SowHeaders(NamedTuple):
    """The headers of an update, parsed for a copy of its topic."""

    version: int
    """The underlying record's version."""
    expires_at_ms: int
    """Time of its expiry, milliseconds since the epoch; 0 is never."""
    correlation_id: bytes
    """The publisher's; empty where there is none, and where it is longer than a store holds."""
    is_expiry: bool
    """True if a record that is gone has expired."""
    others: Headers
    """The headers that travel on as they are."""


def read_sow_headers(headers: Headers | None) -> SowHeaders:
    """Parse the headers of an update.

    Raises:
        RecordRejected: `bad_header`: no worker wrote them to a SOW topic.
    """
    headers = headers or []
    by_name = dict(headers)
    text = by_name.get(_VERSION)
    if (version := read_number(text)) is None:
        raise RecordRejected("bad_header", f"a SOW record carries its version; this one has {text!r:.100}")
    if len(headers) == 1:
        return SowHeaders(version, 0, b"", False, [])
    expires_at = by_name.get(Name.EXPIRES_AT, b"0")
    if (expires_at_ms := read_number(expires_at)) is None:
        raise RecordRejected("bad_header", f"header {Name.EXPIRES_AT} of a SOW record is {expires_at!r:.100}, no time")
    return SowHeaders(
        version,
        expires_at_ms,
        correlation_id(headers),
        read_kind(by_name.get(Name.KIND)) == "expire",
        [header for header in headers if header[0] not in OUR_HEADERS],
    )


def plain_versions(records: Sequence[Record]) -> list[bytes]:
    """Return the version of each record that has no other header, as most have, as text.

    The text is empty for all other records: their headers must be kept, and `read_sow_headers` parses them later.
    """
    heads = cast("list[list[tuple[str, bytes]]]", [record[2] for record in records])  # Where one is not, it raises.
    try:
        texts = [text for ((name, text),) in heads if name == _VERSION]
        if len(texts) == len(records) and b"".join(texts).isdigit() and _PLAIN_LENGTHS.issuperset(map(len, texts)):
            return texts
    except (TypeError, ValueError):
        pass  # One has no headers or several, or a version without a value.
    return [_plain_version(record[2]) for record in records]


def _plain_version(headers: Headers | None) -> bytes:
    if headers is None or len(headers) != 1:
        return b""
    name, text = headers[0]
    return text if name == _VERSION and text and text.isdigit() and len(text) <= PLAIN_DIGITS_MAX else b""


def correlation_id(headers: Headers | None) -> bytes:
    """Return the correlation id of an update; empty for none, and for one that is longer than a store holds."""
    text = dict(headers or ()).get(Name.CORRELATION_ID) or b""
    return text if len(text) <= _TEXT_BYTES_MAX else b""


def is_at_once(headers: Headers | None) -> bool:
    """Return whether the publisher of an update asks that it is not conflated.

    The value is compared as bytes: a header that is not UTF-8 must not keep its record from the copy.
    """
    return dict(headers or ()).get(Name.NO_CONFLATE) == b"true"


def stored_from(record: Record) -> Stored | None:
    """Return a SOW record as a store keeps it; None for a tombstone.

    Raises:
        ValueError: its headers are not those of a SOW record.
    """
    return None if record.value is None else stored_of(record.headers or (), record.value)


def stored_of(headers: Sequence[Header], value: bytes) -> Stored:
    """Return a value with the numbers that its headers have.

    Raises:
        ValueError: the headers are not those of a SOW record.
    """
    if (plain_version := plain_version_of(headers)) >= 0:
        return Stored(plain_version, value)
    version: int | None = 0
    expires_at_ms: int | None = 0
    source_offset: int | None = -1
    expiration = group_stamps = b""
    for name, text in headers:
        if name == _VERSION:
            version = read_number(text)
        elif name == Name.EXPIRES_AT:
            expires_at_ms = read_number(text)
        elif name == Name.SOURCE:
            source_offset = read_source_offset(text)
        elif name == Name.EXPIRATION:
            expiration = text or b""
        elif name == Name.GROUP_STAMPS:
            group_stamps = text or b""
    if version is None or expires_at_ms is None or source_offset is None or not _is_storable(expiration, group_stamps):
        raise ValueError(f"a header of it is none that a worker writes: {list(headers)!r:.300}")
    return Stored(version, value, expires_at_ms, source_offset, expiration, group_stamps)


def _is_storable(expiration: bytes, group_stamps: bytes) -> bool:
    """Return whether a store can hold both texts, which it separates by a NUL."""
    if b"\0" in expiration:
        return False
    return len(expiration) + (1 + len(group_stamps) if group_stamps else 0) <= _TEXT_BYTES_MAX


def plain_version_of(headers: Sequence[Header]) -> int:
    """Return the version of a record that has no other header but its kind; -1 for all other records."""
    count = len(headers)
    if count == 1 or (count == 2 and headers[1][0] == _KIND):
        name, text = headers[0]
        if name == _VERSION and text is not None and text.isdigit() and len(text) <= PLAIN_DIGITS_MAX:
            return int(text)
    return -1


def source_offset(headers: Headers | None, prefix: bytes = b"") -> int | None:
    """Return the offset of the input record that a record was made of.

    Args:
        headers: the record's.
        prefix: `topic/partition/` of the input; empty: of any.

    Returns:
        The offset; None where no header names an input record of that partition.
    """
    value = last_value(headers, Name.SOURCE)
    return read_source_offset(value) if value is not None and value.startswith(prefix) else None


def version_of(headers: Headers | None) -> int | None:
    """Return the version of a SOW or delta record; None where it has none."""
    return read_number(last_value(headers, _VERSION))


def kind_of_update(headers: Headers | None) -> Kind | None:
    """Return the kind of a SOW or delta record; None where it is an ordinary update."""
    return read_kind(last_value(headers, Name.KIND))


def first_timestamp_ms(headers: Headers | None) -> int | None:
    """Return Kafka's timestamp of the first update of a conflated record; None where it has none."""
    return read_number(last_value(headers, Name.FIRST_TIMESTAMP))


def expires_at_ms_of(headers: Headers | None) -> int | None:
    """Return the time at which a record expires, milliseconds since the epoch; None or 0 is never."""
    return read_number(last_value(headers, Name.EXPIRES_AT))


def input_place(headers: Headers | None) -> bytes | None:
    """Return the header `source` as it stands in a record; None where there is none."""
    return last_value(headers, Name.SOURCE)


def message_headers(headers: Headers) -> Headers:
    """Return the headers of a SOW record that go with it into a queue: all but the stamps of its sequence groups."""
    if headers and headers[-1][0] == Name.GROUP_STAMPS:
        return headers[:-1]
    return headers


def copied_headers(headers: Headers | None) -> Headers:
    """Return the headers of a SOW record that is copied to another topic: it is made of no input record there."""
    return [header for header in headers or () if header[0] != Name.SOURCE]
