"""Makes messages of Kafka records, as one subscription wants them."""

from __future__ import annotations

from datetime import UTC, datetime

from processor.subscribe.message import Message, MessageCommand, OofReason
from processor.client.options import Options
from processor.codec import Codec
from processor.record import Name, Record, Value, header_text


class Envelope:
    """The same for every message of a subscription: topic, codec, options."""

    def __init__(self, topic: str, codec: Codec, options: Options) -> None:
        self._topic = topic
        self._codec = codec
        self._options = options

    def decode(self, value: bytes) -> Value:
        """Parse a record that a worker wrote."""
        return self._codec.decode_own(value)

    def decode_delta(self, record: Record) -> Value:
        """Parse a delta that a worker wrote; some message types say part of it in the headers."""
        value = record.value or b""
        if self._codec.uses_headers and self._codec.can_delta:
            return self._codec.decode_command(value, record.headers or [], is_delta=True)
        return self._codec.decode_own(value)

    @property
    def can_delta(self) -> bool:
        """False for message types that carry whole records only: then a delta subscription tells those."""
        return self._codec.can_delta

    def mark(self, command: MessageCommand) -> Message:
        """The beginning or the end of a group."""
        return Message(command, self._topic)

    def message(
        self,
        command: MessageCommand,
        record: Record,
        data: Value,
        *,
        delta: bool = False,
        reason: OofReason | None = None,
        removed: tuple[str, ...] = (),
    ) -> Message:
        """A message about one record."""
        version = header_text(record.headers, Name.VERSION)
        return Message(
            command,
            self._topic,
            None if self._options.no_sowkey else key_text(record),
            data,
            delta,
            None if version is None else int(version),
            _iso(record.timestamp_ms) if self._options.timestamp else None,
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
