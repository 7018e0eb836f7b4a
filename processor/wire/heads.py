"""The headers of SOW and delta records, as every writer writes them.

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
`touched`              conflated topics       -                      see `processor.wire.touched`
`as_of`                views, if asked for    views, if asked for    the offsets of the input that a row reflects
=====================  =====================  =====================  ==================================================

The merge loops write a version in place, with `VERSION_NAME`, so that nothing is called for each record. A SOW record
and its delta share a list of headers: a writer that adds a header makes a new list.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.topics.family import REMOVED_BYTES_MAX as _REMOVED_BYTES_MAX
from processor.wire.headers import Name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Command, Header, Headers, Kind

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
