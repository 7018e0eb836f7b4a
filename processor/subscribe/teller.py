"""Makes the messages of a subscription: whole records, deltas and out-of-focus, as its options want them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import RecordRejected, Stop
from processor.filter import Facts
from processor.key_text import text_of_key
from processor.merge import conflated_delta, diff
from processor.record import Name
from processor.subscribe.message import Message
from processor.subscribe.select import Select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from processor.codec import Codec
    from processor.merge import KeyFields, Touched
    from processor.record import Headers, Record, Value
    from processor.subscribe.message import MessageCommand, OofReason
    from processor.subscribe.options import Options


_DIGITS_MAX: Final = 18
"""Longest version that a worker writes."""


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
        assert record.value is not None
        codec = self.codec
        try:
            value = codec.decode_own(record.value)
            if type(value) is not dict and codec.can_delta:
                raise RecordRejected("not_an_object", "a SOW record is an object")
        except RecordRejected as error:
            raise self.unreadable(record, error, partition) from error
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
            correlation_id=_told(record.headers)[1] or "",
            last_updated_ms=record.timestamp_ms,
        )


class Style(NamedTuple):
    """How messages look; subscriptions of one style are told by one and the same message."""

    select: str | None
    """The select list."""
    no_sowkey: bool
    """Whether the key is left out."""
    timestamp: bool
    """Whether the time is said."""


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
        self.style = Style(options.select, options.no_sowkey, options.timestamp)
        self.tells_deltas = delta and topic.codec.can_delta
        self.no_empties = options.no_empties
        self._topic = topic
        self._name = topic.name
        self._select = None if options.select is None else Select(options.select, topic.key)

    def mark(self, command: MessageCommand, sub_ids: tuple[str, ...]) -> Message:
        """The beginning or the end of a group."""
        return Message(command, self._topic.name, sub_ids=sub_ids)

    def selected(self, value: Value) -> Value:
        """What the subscriber is sent of a record."""
        return value if self._select is None else self._select.project(value)

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

    def delta(self, record: Record, value: Value, before: Value, touched: Touched | None = None) -> Message | None:
        """What changed in what is selected; None if that is nothing, and nothing is to be told of it.

        Args:
            record: the update.
            value: the record now.
            before: the record that the subscriber has.
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
        return self._message("publish", record, data, None, delta=True, removed=tuple(removed))

    def written_delta(self, record: Record, data: Value, *, delta: bool, removed: tuple[str, ...]) -> Message:
        """A delta just as its worker wrote it."""
        return self._message("publish", record, data, None, delta=delta, removed=removed)

    def _message(
        self,
        command: MessageCommand,
        record: Record,
        data: Value,
        reason: OofReason | None,
        *,
        delta: bool = False,
        removed: tuple[str, ...] = (),
        sub_ids: tuple[str, ...] = (),
    ) -> Message:
        _, no_sowkey, timestamp = self.style
        version, correlation_id = _told(record.headers)
        return Message(
            command,
            self._name,
            None if no_sowkey else key_text(record),
            data,
            delta,
            version,
            _iso(record.timestamp_ms) if timestamp else None,
            correlation_id,
            reason,
            removed,
            sub_ids,
        )


def key_text(record: Record) -> str:
    """The SOW key; a byte that is not UTF-8 is shown, not hidden."""
    return text_of_key(record.key)


def gone_reason(record: Record) -> OofReason:
    """Why a tombstone took a record away."""
    kind = next((value for name, value in reversed(record.headers or ()) if name == Name.KIND), None)
    return "expired" if kind == b"expire" else "deleted"


def _told(headers: Headers | None) -> tuple[int | None, str | None]:
    """The version and the correlation id; a byte of the latter that is not UTF-8 is shown."""
    version = correlation_id = None
    for name, value in headers or ():
        if name == Name.VERSION:
            version = int(value) if value is not None and value.isdigit() and len(value) <= _DIGITS_MAX else None
        elif name == Name.CORRELATION_ID:
            correlation_id = None if value is None else value.decode(errors="backslashreplace")
    return version, correlation_id


def _iso(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
