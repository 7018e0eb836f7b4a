"""Makes Kafka records of what a publisher says, for one topic. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from processor.codec import Codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError, RecordRejected
from processor.merge import KeyFields
from processor.record import OUR_HEADERS, Command, Headers, Name, Value
from processor.topics import topic_name

_OURS_ALONE: Final = OUR_HEADERS - {
    Name.REMOVE,
    Name.EXPIRATION,
    Name.CORRELATION_ID,
    Name.FIELDS,
    Name.ALLOW_MERGE,
}
"""Headers that the worker writes, or that have an argument of their own."""


class Outbox:
    """What holds for all that is published to one topic."""

    def __init__(self, topic: str, settings: TopicConfig, codec: Codec) -> None:
        self.kafka_topic = topic_name(topic, "publish")
        self._default_command = settings.default_command
        self._codec = codec
        self._key_fields = KeyFields(settings.key_fields)

    def record(
        self, command: Command, data: Value, key: str | None, headers: Mapping[str, str] | None
    ) -> tuple[bytes, bytes | None, Headers | None]:
        """The Kafka key, value and headers of one command.

        Args:
            command: what is asked for.
            data: a parsed value, or `bytes` that are a message already and travel as they are.
            key: the SOW key; None: made of the key fields in the data.
            headers: more headers.

        Raises:
            RecordRejected: there is no key, or what must be parsed or written cannot be.
            ConfigurationError: a header that is not a publisher's to give.
        """
        if key is None:
            key = self._key(self._codec.decode(data) if isinstance(data, bytes) else data)
        # A tombstone says sow_delete by itself; any other command is said only where it is not the usual one.
        is_said = command not in (self._default_command, "sow_delete")
        value = None if command == "sow_delete" else self._value(data)
        return key.encode(), value, self._headers(command if is_said else None, headers)

    def _value(self, data: Value) -> bytes:
        if isinstance(data, bytes):
            return data
        try:
            return self._codec.encode(data)
        except TypeError as error:
            raise RecordRejected("undecodable", str(error)) from None

    def _key(self, record: Value) -> str:
        if type(record) is not dict:
            raise RecordRejected("not_an_object", "a record is an object; this message is not")
        text = self._key_fields.text(record)
        if text is None:
            fields = ", ".join(self._key_fields.pointers)
            raise RecordRejected("missing_key", f"the message lacks a key field; the topic's are {fields}")
        return text

    def _headers(self, command: Command | None, given: Mapping[str, str] | None) -> Headers | None:
        headers: Headers = []
        for name, value in (given or {}).items():
            if name in _OURS_ALONE:
                raise ConfigurationError(f"header {name!r} is Sowstream's own; a publisher cannot set it")
            headers.append((name, value.encode()))
        if command is not None:
            headers.append((Name.COMMAND, command.encode()))
        return headers or None
