"""A message of a subscription."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from processor.codec.json_value import to_json_line
from processor.record import Value
from processor.wire.subscriber_headers import NO_HEADERS

MessageCommand: TypeAlias = Literal["group_begin", "sow", "group_end", "publish", "oof"]
"""The kind of a message: a snapshot's beginning, one of its records, its end; an update; a record out of focus."""

OofReason: TypeAlias = Literal["match", "deleted", "expired", "entitlement"]
"""The reason for which a record went out of focus."""


class Message(NamedTuple):
    """One message of a subscription; the fields are those of subscribe.md."""

    command: MessageCommand
    """Its kind."""
    topic: str
    """The SOW topic, by its configured name."""
    sow_key: str | None = None
    """The record's key; None with the option `no_sowkey` and for the marks of a group."""
    data: Value = None
    """The whole record, or, where `delta` is true, its key fields and the changed ones."""
    delta: bool = False
    """True if `data` is a part of the record."""
    version: int | None = None
    """Counts the key's updates from 1."""
    timestamp: str | None = None
    """Time at which the worker emitted it, ISO 8601 in UTC; only with the option `timestamp`."""
    correlation_id: str | None = None
    """The publisher's, as it came."""
    reason: OofReason | None = None
    """Of an `oof`: why."""
    removed: tuple[str, ...] = ()
    """Of a delta: JSON Pointers of the paths that are gone."""
    sub_ids: tuple[str, ...] = ()
    """The subscriptions it is for, where a connection has several."""
    bookmark: str | None = None
    """Of a replay: where to go on after this message."""
    headers: Mapping[str, str] = NO_HEADERS
    """The publisher's own headers by name, read only: `client`, `sequence`, `no_conflate` and all that are not
    Sowstream's. The last of several of one name counts, one without a value is an empty text, and a byte that is not
    UTF-8 is shown as `\\xff`."""
    conflated: int | None = None
    """Of a conflated topic: how many updates were folded into this one, if more than one."""
    first_timestamp: str | None = None
    """Of a conflated topic: the time of the first of those updates, ISO 8601 in UTC."""
    delta_base: int | None = None
    """Of a delta: the version of the record that it is to be applied to."""
    expires_at: str | None = None
    """Time of the record's expiry, ISO 8601 in UTC; None: never."""

    def addressed(self, sub_ids: tuple[str, ...]) -> Message:
        """The same, for these subscriptions."""
        # `_replace` takes twice as long, and every message of a connection with several comes through here.
        return Message._make((*self[:_SUB_IDS], sub_ids, *self[_SUB_IDS + 1 :]))

    def to_json(self) -> str:
        """One line of JSON; empty fields are left out, except `command` and `topic`.

        Values that JSON has no type for are texts: bytes are Base64, dates ISO 8601, identifiers as they are written.
        """
        fields = {
            name: value
            for name, value in zip(self._fields, self, strict=True)
            if value is not None and value is not False and value != () and value is not self.headers
        }
        if self.headers:
            fields["headers"] = dict(self.headers)
        return to_json_line(fields)

    def data_json(self) -> str:
        """The record alone, as one line of JSON."""
        return to_json_line(self.data)


_SUB_IDS = Message._fields.index("sub_ids")

PAUSE_MESSAGE = Message("group_begin", "")
"""Stands for no message, where `PAUSE` stands for no record."""
