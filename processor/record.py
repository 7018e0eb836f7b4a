"""What travels between the stages: records on their way in, states at rest, and the words in their headers.

These types are named tuples rather than frozen dataclasses: as immutable and slotted, and built in C, which matters
where half a million of them are made a second.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

Value: TypeAlias = Any
"""A parsed value: None, bool, int, float, str, list, or dict with string keys. The one place where Any is meant."""

Header: TypeAlias = tuple[str, bytes | None]
"""A Kafka header: its name and its value, UTF-8 text where it is ours."""

Headers: TypeAlias = list[Header]
"""Headers in the order they stand in the record. A name may occur more than once; the last one counts."""

Outgoing: TypeAlias = tuple[bytes | None, bytes | None, Headers]
"""A record on its way out: key, value (None: a tombstone) and headers."""


class Record(NamedTuple):
    """One record of an input topic, as it came from Kafka; nothing is decoded yet."""

    key: bytes | None
    """The Kafka record key, None where the publisher gave none."""
    value: bytes | None
    """The message, None for a tombstone."""
    headers: Headers | None
    """The Kafka headers, None where there are none: the usual case, kept cheap."""
    offset: int
    """Its place in the input partition."""
    timestamp_ms: int
    """Kafka's record timestamp, milliseconds since the epoch."""


class Stored(NamedTuple):
    """The last record of one key, as the SOW topic and the store hold it."""

    version: int
    """Counts the key's updates from 1."""
    value: bytes
    """The encoded record: byte for byte the value on the SOW topic."""
    expires_at_ms: int = 0
    """When it expires, milliseconds since the epoch; 0 is never."""
    source_offset: int = -1
    """Offset of the input record this state came from, where the SOW record's `source` header says it; else -1."""
    expiration: bytes = b""
    """The record's own time to live, as header `expiration` of its SOW record has it: seconds, UTF-8; empty where it is
    the topic's default."""


class Change(NamedTuple):
    """What one command did to one record."""

    record: Value
    """The whole record after it."""
    delta: Value
    """Changed and added paths with their new values; empty if nothing changed. Key fields are not added here."""
    removed: list[str]
    """JSON Pointers (RFC 6901) of the paths that are gone, in the order met."""


Kind: TypeAlias = Literal["insert", "update", "delete", "expire"]
"""What an update is to its key, as header `kind` says it."""

Command: TypeAlias = Literal["publish", "delta_publish", "sow_delete"]
"""What a publisher asks for, as header `command` says it."""

COMMANDS: Final[frozenset[str]] = frozenset(("publish", "delta_publish", "sow_delete"))

RejectReason: TypeAlias = Literal[
    "undecodable",
    "not_an_object",
    "missing_key",
    "key_mismatch",
    "wrong_partition",
    "unknown_command",
    "bad_header",
    "too_large",
    "too_deep",
    "schema_not_found",
    "schema_mismatch",
    "plugin_failed",
    "skipped",
]
"""Why a record went to the dead-letter topic, as header `dlq_reason` says it."""


class Name:
    """Header names that Sowstream reads or writes; all others travel on unchanged."""

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
    CONFLATED: Final = "conflated"
    FIRST_TIMESTAMP: Final = "first_timestamp"
    TOUCHED: Final = "touched"
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
"""What a publisher sends under these names does not travel on by itself."""


def header_text(headers: Headers | None, name: str) -> str | None:
    """The last value of a header as text, or None where it is missing.

    Raises:
        UnicodeDecodeError: the value is not UTF-8.
    """
    for header_name, value in reversed(headers or ()):
        if header_name == name:
            return None if value is None else value.decode()
    return None
