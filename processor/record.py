"""The values that travel between the stages: records on their way in and out, states at rest, changes.

These types are named tuples rather than frozen dataclasses: as immutable and slotted, and built in C, which matters
where half a million of them are made a second.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Value: TypeAlias = Any
"""A parsed value: None, bool, int, float, str, list, or dict with string keys. The only alias of Any."""

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
    """Time of its expiry, milliseconds since the epoch; 0 is never."""
    source_offset: int = -1
    """Offset of the input record this state came from, where the SOW record has a header `source`; else -1."""
    expiration: bytes = b""
    """The record's own time to live, as header `expiration` of its SOW record has it: seconds, UTF-8; empty where it is
    the topic's default."""
    group_stamps: bytes = b""
    """The stamps of its sequence groups, as header `group_stamps` of its SOW record has them; empty where every field
    is as new as the record."""


class Change(NamedTuple):
    """The change that one command made to one record."""

    record: Value
    """The full record after it."""
    delta: Value
    """Changed and added paths with their new values; empty if nothing changed. Key fields are not added here."""
    removed: list[str]
    """JSON Pointers (RFC 6901) of the paths that are gone, in the order met."""


Kind: TypeAlias = Literal["insert", "update", "delete", "expire"]
"""The kind of an update for its key, as in header `kind`."""

Command: TypeAlias = Literal["publish", "delta_publish", "sow_delete"]
"""A publisher's command, as in header `command`."""

COMMANDS: Final[frozenset[str]] = frozenset(("publish", "delta_publish", "sow_delete"))

RejectReason: TypeAlias = Literal[
    "undecodable",
    "not_an_object",
    "missing_key",
    "key_mismatch",
    "wrong_partition",
    "moved",
    "unknown_command",
    "bad_header",
    "too_large",
    "too_deep",
    "schema_not_found",
    "schema_mismatch",
    "plugin_failed",
    "skipped",
]
"""Sowstream's own reasons to send a record to the dead-letter topic, as in header `dlq_reason`; a plug-in may have
others."""

_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


def is_reject_reason(reason: object) -> bool:
    """True if a value can be a reject reason, also a label of metrics: a word of lower-case letters, digits and `_`."""
    return isinstance(reason, str) and _REASON.fullmatch(reason) is not None
