"""Builds the Kafka records of published commands, for one topic. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from processor.codec import Codec
from processor.config import TopicConfig
from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError, RecordRejected
from processor.merge import KeyFields
from processor.record import OUR_HEADERS, Command, Headers, Name, RejectReason, Value

_ARGUMENTS: Final[Mapping[str, str]] = {
    Name.COMMAND: "call publish, delta_publish or sow_delete",
    Name.SOW_KEY: "give key=",
    Name.CLIENT: "it goes with sequence=, and is the client's name",
    Name.SEQUENCE: "give sequence=",
    Name.ACK_TYPE: "give ack=",
    Name.COMMAND_ID: "give command_id=",
}
"""Headers that are set by an argument, with the advice for the error message."""

_ALLOWED: Final = frozenset((Name.REMOVE, Name.EXPIRATION, Name.CORRELATION_ID, Name.FIELDS, Name.ALLOW_MERGE))
"""Headers of Sowstream that a publisher may set by name."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]{1,1024}")

_COMMAND_ID_BYTES_MAX: Final = 1024

_EXPIRATION_S_MAX: Final = 100 * 365 * 86_400


class Outbox:
    """Builds Kafka keys, values and headers for the commands of one topic."""

    def __init__(self, topic: str, settings: TopicConfig, codec: Codec, names: KafkaNames | None = None) -> None:
        self.kafka_topic = (names or KafkaNames()).topic(topic, "publish")
        self._default_command = settings.default_command
        # Keys written here are text, even where other publishers write binary keys: the header marks them for a worker.
        self._marks: Headers = [] if settings.key_format == "text" else [(Name.SOURCE, f"{self.kafka_topic}/".encode())]
        self._codec = codec
        self._key_fields = KeyFields(settings.key_fields)
        has_schema = codec.uses_headers or settings.message_schema is not None
        self._unwritable: RejectReason = "schema_mismatch" if has_schema else "undecodable"

    def record(
        self,
        command: Command,
        data: Value,
        key: str | None,
        headers: Mapping[str, str | bytes] | None,
        *,
        expiration: float | None = None,
        correlation_id: str | None = None,
        command_id: str | None = None,
    ) -> tuple[bytes, bytes | None, Headers | None]:
        """The Kafka key, value and headers of one command.

        Args:
            command: the command.
            data: a parsed value, or `bytes` that are an encoded message already and are sent unchanged.
            key: the SOW key; None: computed from the key fields in the data.
            headers: more headers.
            expiration: seconds to live; 0 means never.
            correlation_id: passed on to subscribers.
            command_id: the id that its acks carry.

        Raises:
            RecordRejected: there is no key, the message cannot be parsed or written, or an argument is invalid.
            ConfigurationError: a header that a publisher may not set.
        """
        all_headers: Headers = [*self._marks, *_named_headers(headers or {})]
        if expiration is not None:
            all_headers.append((Name.EXPIRATION, _seconds(expiration)))
        if correlation_id is not None:
            all_headers.append((Name.CORRELATION_ID, _base64(correlation_id)))
        if command_id is not None:
            all_headers.append((Name.COMMAND_ID, _command_id(command_id)))
        if key is None:
            key = self._key(command, data, all_headers)
        value: bytes | None = None
        if command != "sow_delete":
            value = data if isinstance(data, bytes) else self._encode(command, data, all_headers)
            if command != self._default_command:
                all_headers.append((Name.COMMAND, command.encode()))
        # A tombstone means sow_delete without a header.
        return key.encode(), value, all_headers or None

    def delete(
        self,
        key: str | None,
        data: Value,
        headers: Mapping[str, str | bytes] | None,
        *,
        correlation_id: str | None = None,
        command_id: str | None = None,
    ) -> tuple[bytes, None, Headers | None]:
        """The Kafka key, value and headers that delete one record; the key may be computed from the data."""
        raw, _, all_headers = self.record(
            "sow_delete", data, key, headers, correlation_id=correlation_id, command_id=command_id
        )
        return raw, None, all_headers

    def _encode(self, command: Command, data: Value, headers: Headers) -> bytes:
        """Encode the message; parts that the format puts into headers are added to `headers`."""
        try:
            if command == "publish" or not self._codec.uses_headers:
                return self._codec.encode(data)
            value, more = self._codec.encode_delta(data)
        except TypeError as error:
            raise RecordRejected(self._unwritable, str(error)) from None
        headers += more
        return value

    def _key(self, command: Command, data: Value, headers: Headers) -> str:
        """The key, computed from the message."""
        if not self._key_fields.pointers:
            raise RecordRejected("missing_key", "the topic's key is explicit: each message needs one, by key=")
        if isinstance(data, bytes):
            codec = self._codec
            is_delta = command == "delta_publish"
            data = codec.decode_command(data, headers, is_delta=is_delta) if codec.uses_headers else codec.decode(data)
        if type(data) is not dict:
            raise RecordRejected("not_an_object", "a record is an object; this message is not")
        text = self._key_fields.text(data)
        if text is None:
            fields = ", ".join(self._key_fields.pointers)
            raise RecordRejected("missing_key", f"the message lacks a key field; the topic's are {fields}")
        return text


def _named_headers(headers: Mapping[str, str | bytes]) -> Headers:
    """The headers that the caller passes by name.

    Raises:
        ConfigurationError: a header that a publisher may not set.
    """
    kafka_headers: Headers = []
    for name, value in headers.items():
        if name in _ARGUMENTS:
            raise ConfigurationError(f"header {name!r} is not given by name; {_ARGUMENTS[name]}")
        if name in OUR_HEADERS and name not in _ALLOWED:
            raise ConfigurationError(f"header {name!r} is Sowstream's own; a publisher cannot set it")
        kafka_headers.append((name, value if isinstance(value, bytes) else value.encode()))
    return kafka_headers


def _seconds(expiration: float) -> bytes:
    """Seconds as a decimal number; a time above 0 is never rounded to 0."""
    if not 0 <= expiration <= _EXPIRATION_S_MAX:
        raise RecordRejected(
            "bad_header", f"expiration is {expiration!r}; it is seconds to live up to a hundred years, or 0 for never"
        )
    if expiration == int(expiration):
        return b"%d" % int(expiration)
    return f"{max(expiration, 1e-9):.9f}".encode()


def _base64(correlation_id: str) -> bytes:
    if _BASE64.fullmatch(correlation_id) is None:
        raise RecordRejected(
            "bad_header",
            f"correlation_id is {correlation_id!r:.100}; it is 1 to 1024 characters of Base64: letters, digits, + / =",
        )
    return correlation_id.encode()


def _command_id(command_id: str) -> bytes:
    encoded = command_id.encode()
    if not 0 < len(encoded) <= _COMMAND_ID_BYTES_MAX:
        raise RecordRejected(
            "bad_header", f"command_id is {len(encoded)} bytes long; it is 1 to {_COMMAND_ID_BYTES_MAX}"
        )
    return encoded
