"""Parses and preprocesses the messages of a topic, as merged topics and topics without a SOW do alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.api import Preprocessed, RecordRejected

if TYPE_CHECKING:
    from processor.api import Codec, Record, Value
    from processor.builtin.delta_merge.hooks import PreprocessAll
    from processor.wire.command import CommandHeaders


class Messages:
    """The messages of one topic."""

    def __init__(self, codec: Codec, preprocess: PreprocessAll | None) -> None:
        """Create it from the topic's message type and its preprocessors, None without any."""
        self._codec = codec
        self._preprocess = preprocess

    def read(self, record: Record, request: CommandHeaders) -> Preprocessed:
        """The body and the command of a record with a value.

        Raises:
            RecordRejected: the message cannot be parsed, or a preprocessor rejects it.
        """
        value, command = record.value, request.command
        assert value is not None
        if self._codec.uses_headers:
            body = self._codec.decode_command(value, record.headers or [], is_delta=command == "delta_publish")
        else:
            body = self._codec.decode(value)
        if self._preprocess is None or type(body) is not dict:
            return Preprocessed(body, command)
        return self._preprocess(body, command)

    def body(self, record: Record, request: CommandHeaders) -> Value:
        """The body of a record with a value; errors as `read`."""
        return self.read(record, request).body

    def whole(self, record: Record, request: CommandHeaders, changed: Value, *, is_enriched: bool) -> bytes:
        """The message of a type without deltas: as it came, unless a plug-in changed it to `changed`.

        Raises:
            RecordRejected: `bad_header`: the command removes fields.
        """
        if request.remove is not None:
            raise RecordRejected("bad_header", "header remove: messages of this type are published whole")
        assert record.value is not None
        is_changed = self._preprocess is not None or is_enriched
        return self._codec.encode(changed) if is_changed else record.value
