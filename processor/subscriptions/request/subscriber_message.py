"""A message of a subscription, and how the options build it: full records, deltas, out-of-focus and group marks."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from processor.codec.json_value import to_json_line
from processor.merge import conflated_delta, diff
from processor.record import Value
from processor.subscriptions.request.select import Select
from processor.subscriptions.request.subscribed_topic import PAUSE, key_text
from processor.wire import subscriber_headers
from processor.wire.record_headers import headers_of_version, kind_of_update, version_of
from processor.wire.subscriber_headers import NO_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from processor.filter import Filter
    from processor.merge import Touched
    from processor.record import Record
    from processor.subscriptions.request.entitlement import Entitlement
    from processor.subscriptions.request.subscribe_options import Options
    from processor.subscriptions.request.subscribed_topic import ParsedRecord, Topic


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

    def __repr__(self) -> str:
        """The fields that are set."""
        defaults = self._field_defaults
        pairs = [(name, value) for name, value in zip(self._fields, self, strict=True) if value != defaults.get(name)]
        return f"Message({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def without_record(self, data: Value) -> Message:
        """The `oof` of a record that the subscriber may not see any more: it has the fields listed here, no others.

        Args:
            data: the key fields.
        """
        # The fields that are kept are listed, so that a new field of messages is hidden until it is added here.
        return Message(
            "oof",
            self.topic,
            self.sow_key,
            data,
            version=self.version,
            timestamp=self.timestamp,
            reason="entitlement",
            sub_ids=self.sub_ids,
            bookmark=self.bookmark,
        )

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

# Message(...) goes through a function written in Python; this makes the same tuple in less time.
_new: Final = tuple.__new__


class Style(NamedTuple):
    """The fields that messages have; subscriptions of one style share their messages."""

    select: frozenset[str] | None
    """The canonical texts of select lists; a place is sent if one of them includes it. None: the full record is."""
    no_sowkey: bool
    """True if the key is left out."""
    timestamp: bool
    """True if the time is in it."""


class MessageBuilder:
    """Builds the messages of one subscription."""

    def __init__(self, topic: Topic, options: Options, *, delta: bool, entitlement: Entitlement | None = None) -> None:
        """Compile the select list.

        Args:
            topic: the topic.
            options: the options of the subscription.
            delta: whether updates are sent as deltas, if the message type can do deltas.
            entitlement: the records and fields that the subscriber may see; None: all.

        Raises:
            FilterError: the select list cannot be parsed.
        """
        select = None if options.select is None else Select(options.select, topic.key)
        self.asked: Final = select
        """The fields that the subscriber selects; None: all that it may see."""
        if entitlement is not None:
            select = entitlement.selected(select)
        texts = None if select is None else frozenset((select.canonical_text,))
        self.style = Style(texts, options.no_sowkey, options.timestamp)
        self.builds_deltas = delta and topic.codec.can_delta
        self.no_empties = options.no_empties
        self._topic = topic
        self._name = topic.name
        self.select: Select | None = select
        self._entitlement = entitlement

    @classmethod
    def union(cls, builders: Sequence[MessageBuilder]) -> MessageBuilder:
        """A builder of messages with all that the messages of some builders have; it leaves no update out as empty."""
        union = copy(builders[0])
        styles = [builder.style for builder in builders]
        selects = [builder.select for builder in builders if builder.select is not None]
        has_all = len(selects) < len(builders)
        union.select = None if has_all else Select.union(selects)
        union.style = Style(
            None if has_all else frozenset(select for style in styles for select in style.select or ()),
            no_sowkey=all(style.no_sowkey for style in styles),
            timestamp=any(style.timestamp for style in styles),
        )
        union.no_empties = False
        return union

    def mark(self, command: MessageCommand, sub_ids: tuple[str, ...]) -> Message:
        """The message that begins or ends a group."""
        return Message(command, self._topic.name, sub_ids=sub_ids)

    def snapshot(self, records: Iterable[ParsedRecord], sub_ids: tuple[str, ...]) -> Iterator[Message]:
        """The messages of a snapshot: the records in their order, between two group marks."""
        yield self.mark("group_begin", sub_ids)
        full = self.full
        for parsed in records:
            if parsed is PAUSE:
                yield PAUSE_MESSAGE
            else:
                yield full("sow", *parsed, None, sub_ids)
        yield self.mark("group_end", sub_ids)

    def selected(self, value: Value) -> Value:
        """The selected part of a record."""
        return value if self.select is None else self.select.project(value)

    def full(
        self,
        command: MessageCommand,
        record: Record,
        value: Value,
        reason: OofReason | None = None,
        sub_ids: tuple[str, ...] = (),
    ) -> Message:
        """A message with a full record, as far as it is selected.

        Args:
            command: the kind of message.
            record: the source of version, time and correlation id: for an `oof`, the update that caused it.
            value: the record's value.
            reason: of an `oof`.
            sub_ids: the subscriptions it is for; empty: it carries none.
        """
        return self._message(command, record, self.selected(value), reason, sub_ids=sub_ids)

    @property
    def visible(self) -> Filter | None:
        """Matches the records that the subscriber may see; None: all."""
        return None if self._entitlement is None else self._entitlement.filter

    def out_of_focus(
        self,
        record: Record,
        value: Value | None,
        before: Value,
        *,
        is_conflated: bool = False,
        is_hidden: bool | None = None,
    ) -> Message:
        """The `oof` of a record that left the focus.

        Args:
            record: the update that took it out.
            value: its value; None for a tombstone.
            before: the record that the subscriber has.
            is_conflated: whether updates were conflated; then the body is the record received last.
            is_hidden: whether the subscriber may not see the record after the update; None: it is computed.
        """
        if value is None:
            return self.full("oof", record, before, gone_reason(record))
        if is_hidden is None:
            entitlement = self._entitlement
            is_hidden = entitlement is not None and not entitlement.allows(value, self._topic.metadata_of(record))
        if is_hidden:
            # Neither the new record nor its publisher's headers may be seen.
            version = version_of(record.headers)
            bare = record._replace(headers=None if version is None else headers_of_version(version))
            return self.full("oof", bare, before, "entitlement")
        return self.full("oof", record, before if is_conflated else value, "match")

    def withdrawn(self, record: Record, value: Value) -> Message:
        """The `oof` of a record that the subscriber may not see any more: its key fields alone."""
        key_fields = self._topic.key.only(value) if type(value) is dict else None
        return self._message("oof", record._replace(headers=None), key_fields, "entitlement")

    def delta(
        self, record: Record, value: Value, before: Value, base: int | None, touched: Touched | None = None
    ) -> Message | None:
        """A message with the change of the selected part; None if nothing changed and empty messages are not wanted.

        Args:
            record: the update.
            value: the record now.
            before: the record that the subscriber has.
            base: the version of that record.
            touched: the selected paths that changed in between, where updates were conflated.
        """
        new, old = self.selected(value), self.selected(before)
        if touched is None:
            change = diff(old, new)
            delta, removed = change.delta, change.removed
        else:
            delta, removed = conflated_delta(old, new, touched)
        data = self._topic.key.with_delta(value, delta)
        # Key fields count as touched, too, where a record was deleted and came back.
        if self.no_empties and not removed and (not delta or (touched and data == self._topic.key.only(value))):
            return None
        return self._message("publish", record, data, None, delta=True, base=base, removed=tuple(removed))

    def written_delta(self, record: Record, data: Value, *, delta: bool, removed: tuple[str, ...]) -> Message:
        """A message with a delta as its worker wrote it: without a base of its own its base is the version before."""
        return self._message("publish", record, data, None, delta=delta, is_written=True, removed=removed)

    def _message(
        self,
        command: MessageCommand,
        record: Record,
        data: Value,
        reason: OofReason | None,
        *,
        delta: bool = False,
        is_written: bool = False,
        base: int | None = None,
        removed: tuple[str, ...] = (),
        sub_ids: tuple[str, ...] = (),
    ) -> Message:
        _, no_sowkey, timestamp = self.style
        version, correlation_id, headers, conflated, first_timestamp, own, expires_at = subscriber_headers.metadata(
            record.headers
        )
        if is_written and delta:
            base = own if own is not None or version is None else version - 1
        fields = (
            command,
            self._name,
            None if no_sowkey else key_text(record),
            data,
            delta,
            version,
            subscriber_headers.iso(record.timestamp_ms) if timestamp else None,
            correlation_id,
            reason,
            removed,
            sub_ids,
            None,
            headers,
            conflated,
            first_timestamp,
            base,
            expires_at,
        )
        return _new(Message, fields)


def gone_reason(record: Record) -> OofReason:
    """The reason for which a tombstone deleted its record."""
    return "expired" if kind_of_update(record.headers) == "expire" else "deleted"
