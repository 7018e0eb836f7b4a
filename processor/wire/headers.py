r"""The names of Sowstream's headers, and the one rule by which the value of each kind of header is read.

Every record of every topic is written and read in `processor.wire`. No other module uses a name of `Name`, which
`tests/wire/test_owner.py` checks.

============================  ==========================================================================================
headers                       value
============================  ==========================================================================================
`version`, `delta_base`,      a number: 1 to 19 ASCII digits, less than 2⁶³ (a store holds 63 bits); no sign, no space,
`expires_at`, `sequence`,     no `_`; leading zeros are allowed
`first_timestamp`,
`conflated`
`source`                      `topic/partition/offset`; the text after the last `/` is a number
`kind`                        `insert`, `update`, `delete` or `expire`; every other value is an update
`empty`, `no_conflate`        `true`; every other value is false
`as_of`                       a JSON object: `topic/partition` → offset
`group_stamps`                JSON, see `processor.merge.group_stamps`
`correlation_id` and texts    UTF-8; a reader for people shows other bytes as `\xff`
============================  ==========================================================================================

A header may occur more than once: the last one counts. A name ends at its first NUL, as librdkafka reads it. A value
that breaks the rule is no value, and the reader decides about the record: a restore refuses it, a conflated topic
rejects it, and a subscriber gets a message without the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Headers, Kind


UNREADABLE_NAME: Final = "\ufffd"
"""The name of a header whose own is not UTF-8: the character that Java and Spark read in place of such bytes, too. No
record of ours has a name with it, and an input record that has one is rejected."""

NUMBER_END: Final = 2**63
"""The first number that no header has: stores hold 63 bits."""

NUMBER_DIGITS_MAX: Final = 19
"""The digits of the largest number, 2⁶³ - 1."""

_SAFE_DIGITS_MAX: Final = NUMBER_DIGITS_MAX - 1


class Name:
    """The names of the headers that Sowstream reads or writes; all other headers travel on unchanged."""

    COMMAND: Final = "command"
    ALLOW_MERGE: Final = "allow-merge"
    VERSION: Final = "version"
    KIND: Final = "kind"
    DELTA_BASE: Final = "delta_base"
    REMOVED: Final = "removed"
    EMPTY: Final = "empty"
    REMOVE: Final = "remove"
    SOURCE: Final = "source"
    EXPIRES_AT: Final = "expires_at"
    GROUP_STAMPS: Final = "group_stamps"
    AS_OF: Final = "as_of"
    CONFLATED: Final = "conflated"
    FIRST_TIMESTAMP: Final = "first_timestamp"
    TOUCHED: Final = "touched"
    MOVED_TO: Final = "sowstream_moved_to"
    NO_CONFLATE: Final = "no_conflate"
    DLQ_REASON: Final = "dlq_reason"
    DLQ_DETAIL: Final = "dlq_detail"
    DLQ_BYTES: Final = "dlq_bytes"
    DLQ_SHA256: Final = "dlq_sha256"
    DLQ_TRUNCATED: Final = "dlq_truncated"
    EXPIRATION: Final = "expiration"
    FIELDS: Final = "fields"
    CLIENT: Final = "client"
    SEQUENCE: Final = "sequence"
    CORRELATION_ID: Final = "correlation_id"
    SOW_KEY: Final = "sow_key"
    ACK_TYPE: Final = "ack_type"
    COMMAND_ID: Final = "command_id"
    REPLAY_OF: Final = "replay_of"
    EXPECT_VERSION: Final = "expect_version"
    FILTER: Final = "filter"


TRAVELLING_HEADERS: Final[frozenset[str]] = frozenset((Name.NO_CONFLATE, Name.CLIENT, Name.SEQUENCE, Name.FILTER))
"""Headers of ours that travel on to SOW and delta as the publisher sent them; `filter` is ours on a delete alone."""

OUR_HEADERS: Final[frozenset[str]] = (
    frozenset(value for name, value in vars(Name).items() if not name.startswith("_")) - TRAVELLING_HEADERS
)
"""Headers that do not travel on from a publisher's record: a worker reads them or writes its own."""

HEAL: Final = "heal"
"""The end of header `source` of a command of `sowstream topics heal`."""

FIELDS_NAME: Final = Name.FIELDS
"""The name of the header with the paths of an Avro delta, whose value `codec.avro.delta` reads and writes."""

_KINDS: Final[dict[bytes, Kind]] = {b"insert": "insert", b"update": "update", b"delete": "delete", b"expire": "expire"}


def last_value(headers: Headers | None, name: str) -> bytes | None:
    """Return the last value of a header; None where it is missing or has no value."""
    last = None
    for header_name, value in headers or ():
        if header_name == name:
            last = value
    return last


def header_text(headers: Headers | None, name: str) -> str | None:
    """Return the last value of a header as text; None where it is missing or has no value.

    Raises:
        UnicodeDecodeError: the value is not UTF-8.
    """
    value = last_value(headers, name)
    return None if value is None else value.decode()


def read_number(value: bytes | None) -> int | None:
    """Return the number of a header; None for a value that breaks the rule."""
    if value is None or not value.isdigit():
        return None
    if len(value) <= _SAFE_DIGITS_MAX:
        return int(value)
    if len(value) > NUMBER_DIGITS_MAX or (number := int(value)) >= NUMBER_END:
        return None
    return number


def read_kind(value: bytes | None) -> Kind | None:
    """Return the kind of an update; None for a value that is none of the four, which is an ordinary update."""
    return None if value is None else _KINDS.get(value)


def read_source_offset(value: bytes | None) -> int | None:
    """Return the input offset at the end of a header `source`; None for a value that breaks the rule."""
    return None if value is None else read_number(value.rpartition(b"/")[2])


def read_text(value: bytes | None) -> str | None:
    """Return the text of a header; None for a value that is not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def read_shown_text(value: bytes | None) -> str | None:
    r"""Return the text of a header for people: a byte that is not UTF-8 is shown as `\xff`, not hidden."""
    return None if value is None else value.decode(errors="backslashreplace")


# The headers of a trace are not among `Name`: they are a publisher's own, travel on to SOW and delta, and no worker
# changes them.
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

TRACE_BYTES_MAX: Final = 512
"""Longest value that is read; W3C's `tracestate` may have 512 characters, `traceparent` has 55."""


def has_trace(headers: Headers | None) -> bool:
    """Return whether a record has a header `traceparent`."""
    return any(name == TRACEPARENT for name, _ in headers or ())


def trace_of(headers: Headers | None) -> dict[str, str]:
    """Return the headers of the trace of a record, for a propagator; empty where there is none that can be read."""
    trace: dict[str, str] = {}
    for name, value in headers or ():
        if (
            name in (TRACEPARENT, TRACESTATE)
            and value is not None
            and len(value) <= TRACE_BYTES_MAX
            and value.isascii()
        ):
            trace[name] = value.decode()
    return trace if TRACEPARENT in trace else {}


def trace_headers(trace: Mapping[str, str]) -> Headers:
    """Return the headers of a propagator's trace."""
    return [(name, value.encode()) for name, value in trace.items() if name in (TRACEPARENT, TRACESTATE)]
