"""Makes the messages of a subscription: whole records, deltas and out-of-focus, as its options want them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from processor.filter import Facts
from processor.merge import conflated_delta, diff
from processor.record import Name, header_text
from processor.subscribe.message import Message
from processor.subscribe.select import Select

if TYPE_CHECKING:
    from processor.codec import Codec
    from processor.merge import KeyFields, Touched
    from processor.record import Record, Value
    from processor.subscribe.message import MessageCommand, OofReason
    from processor.subscribe.options import Options


class Topic(NamedTuple):
    """What is known of a topic's records."""

    name: str
    """Its configured name."""
    codec: Codec
    """Its message type."""
    key: KeyFields
    """Its key fields."""

    def value(self, record: Record) -> Value:
        """The parsed record.

        Raises:
            RecordRejected: it is not what a worker wrote.
        """
        assert record.value is not None
        return self.codec.decode_own(record.value)

    def facts(self, record: Record) -> Facts:
        """What a filter may ask besides its fields."""
        return Facts(
            message_bytes=len(record.value or b""),
            sow_key=key_text(record),
            topic=self.name,
            correlation_id=header_text(record.headers, Name.CORRELATION_ID) or "",
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
        self._select = None if options.select is None else Select(options.select, topic.key)

    def mark(self, command: MessageCommand) -> Message:
        """The beginning or the end of a group."""
        return Message(command, self._topic.name)

    def whole(self, command: MessageCommand, record: Record, value: Value, reason: OofReason | None = None) -> Message:
        """A whole record, as far as it is selected.

        Args:
            command: what the message is.
            record: tells version, time and correlation id: of an `oof` this is the update that was the cause.
            value: what the data is made of.
            reason: of an `oof`.
        """
        return self._message(command, record, value if self._select is None else self._select.project(value), reason)

    def delta(self, record: Record, value: Value, before: Value, touched: Touched | None = None) -> Message | None:
        """What changed in what is selected; None if that is nothing, and nothing is to be told of it.

        Args:
            record: the update.
            value: the record now.
            before: the record that the subscriber has.
            touched: what was touched in between, where updates were folded.
        """
        new, old = value, before
        if self._select is not None:
            new, old = self._select.project(value), self._select.project(before)
        if touched is None:
            change = diff(old, new)
            delta, removed = change.delta, change.removed
        else:
            delta, removed = conflated_delta(old, new, touched)
        if self.no_empties and not delta and not removed:
            return None
        data = self._topic.key.with_delta(value, delta)
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
    ) -> Message:
        _, no_sowkey, timestamp = self.style
        version = header_text(record.headers, Name.VERSION)
        return Message(
            command,
            self._topic.name,
            None if no_sowkey else key_text(record),
            data,
            delta,
            int(version) if version is not None and version.isdecimal() else None,
            _iso(record.timestamp_ms) if timestamp else None,
            header_text(record.headers, Name.CORRELATION_ID),
            reason,
            removed,
        )


def key_text(record: Record) -> str:
    """The SOW key; a byte that is not UTF-8 is shown, not hidden."""
    return (record.key or b"").decode(errors="backslashreplace")


def gone_reason(record: Record) -> OofReason:
    """Why a tombstone took a record away."""
    return "expired" if header_text(record.headers, Name.KIND) == "expire" else "deleted"


def _iso(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
