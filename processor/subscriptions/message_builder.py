"""Makes the messages of a subscription: whole records, deltas and out-of-focus, as its options want them."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import RecordRejected, Stop
from processor.filter import Facts
from processor.merge import conflated_delta, diff
from processor.subscriptions.message import Message
from processor.subscriptions.select import Select
from processor.values.key_text import text_of_key
from processor.wire import metadata
from processor.wire.sow_headers import kind_of_update

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from processor.codec import Codec
    from processor.merge import KeyFields, Touched
    from processor.record import Record, Value
    from processor.subscriptions.message import MessageCommand, OofReason
    from processor.subscriptions.options import Options


# Message(...) goes through a function written in Python; this makes the same tuple in less time.
_new: Final = tuple.__new__


class Topic(NamedTuple):
    """What is known of a topic's records."""

    name: str
    """Its configured name."""
    codec: Codec
    """Its message type."""
    key: KeyFields
    """Its key fields."""

    def value(self, record: Record, partition: int | None = None) -> Value:
        """The parsed record.

        Args:
            record: one with a value.
            partition: where it is, if that is known.

        Raises:
            Stop: it is not what a worker wrote.
        """
        try:
            return self.decoded(record)
        except RecordRejected as error:
            raise self.unreadable(record, error, partition) from error

    def decoded(self, record: Record) -> Value:
        """The same, of a record that may be anything.

        Raises:
            RecordRejected: it is not what a worker wrote.
        """
        assert record.value is not None
        value = self.codec.decode_own(record.value)
        if type(value) is not dict and self.codec.can_delta:
            raise RecordRejected("not_an_object", "a SOW record is an object")
        return value

    def parsed(self, records: Iterable[Record]) -> Iterator[tuple[Record, Value]]:
        """Each of some records with what it says, parsed when its turn comes: many would fill the memory."""
        return ((record, self.value(record)) for record in records)

    def unreadable(self, record: Record, error: RecordRejected, partition: int | None = None) -> Stop:
        """What a subscriber is told of a record that cannot be parsed."""
        place = f"offset {record.offset}" if partition is None else f"partition {partition}, offset {record.offset}"
        what = f"{place} of its SOW topic, key {key_text(record)!r:.100},"
        return Stop(f"{self.name}: {what} is not what a worker writes: {error}")

    def facts(self, record: Record) -> Facts:
        """What a filter may ask besides its fields."""
        return Facts(
            message_bytes=len(record.value or b""),
            sow_key=key_text(record),
            topic=self.name,
            correlation_id=metadata.correlation_id(record.headers) or "",
            last_updated_ms=record.timestamp_ms,
        )


class Style(NamedTuple):
    """What messages have; subscriptions of one style share their messages."""

    select: frozenset[str] | None
    """The select lists, of which each place is sent that one of them includes; None: everything is sent."""
    no_sowkey: bool
    """Whether the key is left out."""
    timestamp: bool
    """Whether the time is in it."""


class Teller:
    """The messages of one subscription."""

    def __init__(self, topic: Topic, options: Options, *, delta: bool) -> None:
        """Make one.

        Args:
            topic: what its records are.
            options: what was asked for.
            delta: whether updates are told as deltas, where the message type has any.

        Raises:
            ConfigurationError: the select list cannot be read.
        """
        select = None if options.select is None else frozenset((options.select,))
        self.style = Style(select, options.no_sowkey, options.timestamp)
        self.tells_deltas = delta and topic.codec.can_delta
        self.no_empties = options.no_empties
        self._topic = topic
        self._name = topic.name
        self.select: Select | None = None if options.select is None else Select(options.select, topic.key)

    @classmethod
    def union(cls, tellers: Sequence[Teller]) -> Teller:
        """The messages that have all that the messages of these have; no update is left out as empty."""
        union = copy(tellers[0])
        styles = [teller.style for teller in tellers]
        selects = [teller.select for teller in tellers if teller.select is not None]
        has_all = len(selects) < len(tellers)
        union.select = None if has_all else Select.union(selects)
        union.style = Style(
            None if has_all else frozenset(select for style in styles for select in style.select or ()),
            no_sowkey=all(style.no_sowkey for style in styles),
            timestamp=any(style.timestamp for style in styles),
        )
        union.no_empties = False
        return union

    def mark(self, command: MessageCommand, sub_ids: tuple[str, ...]) -> Message:
        """The beginning or the end of a group."""
        return Message(command, self._topic.name, sub_ids=sub_ids)

    def selected(self, value: Value) -> Value:
        """What the subscriber is sent of a record."""
        return value if self.select is None else self.select.project(value)

    def whole(
        self,
        command: MessageCommand,
        record: Record,
        value: Value,
        reason: OofReason | None = None,
        sub_ids: tuple[str, ...] = (),
    ) -> Message:
        """A whole record, as far as it is selected.

        Args:
            command: what the message is.
            record: tells version, time and correlation id: of an `oof` this is the update that was the cause.
            value: what the data is made of.
            reason: of an `oof`.
            sub_ids: whom it is for, if that is to be said.
        """
        return self._message(command, record, self.selected(value), reason, sub_ids=sub_ids)

    def delta(
        self, record: Record, value: Value, before: Value, base: int | None, touched: Touched | None = None
    ) -> Message | None:
        """What changed in what is selected; None if that is nothing, and nothing is to be told of it.

        Args:
            record: the update.
            value: the record now.
            before: the record that the subscriber has.
            base: the version of that.
            touched: what was touched in between, of what is selected, where updates were folded.
        """
        new, old = self.selected(value), self.selected(before)
        if touched is None:
            change = diff(old, new)
            delta, removed = change.delta, change.removed
        else:
            delta, removed = conflated_delta(old, new, touched)
        data = self._topic.key.with_delta(value, delta)
        # Of what went and came back key fields were touched, too.
        if self.no_empties and not removed and (not delta or (touched and data == self._topic.key.only(value))):
            return None
        return self._message("publish", record, data, None, delta=True, base=base, removed=tuple(removed))

    def written_delta(self, record: Record, data: Value, *, delta: bool, removed: tuple[str, ...]) -> Message:
        """A delta just as its worker wrote it: without a base of its own it is for the version before."""
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
        version, correlation_id, headers, conflated, first_timestamp, own, expires_at = metadata.metadata(
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
            metadata.iso(record.timestamp_ms) if timestamp else None,
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


def key_text(record: Record) -> str:
    """The SOW key; a byte that is not UTF-8 is shown, not hidden."""
    return text_of_key(record.key)


def gone_reason(record: Record) -> OofReason:
    """Why a tombstone took a record away."""
    return "expired" if kind_of_update(record.headers) == "expire" else "deleted"
