"""The options of published commands, and the Kafka records that are built of them, for one topic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypedDict

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError, RecordRejected
from processor.merge import KeyFields
from processor.wire.ack import Ack, AckType, ack_types
from processor.wire.forwarding import refuse_reserved
from processor.wire.publisher_headers import HEADER_ARGUMENTS, named_headers, text_key_header
from processor.wire.record_headers import command_header

if TYPE_CHECKING:
    from processor.codec import Codec
    from processor.config import TopicConfig
    from processor.kafka.clients.publisher import Delivered
    from processor.record import Command, Headers, RejectReason, Value

OnAck: TypeAlias = Callable[[Ack], None]
"""Callback: called with every ack of one command."""


class _CommonArguments(TypedDict, total=False):
    """Arguments by name of every publishing call; `Client.publish` describes them."""

    on_ack: OnAck | None
    """Called with each ack."""
    sequence: int | None
    """The publisher's own growing number."""
    correlation_id: str | None
    """Passed on to subscribers."""
    command_id: str | None
    """The id that the command's acks carry."""
    on_delivery: Delivered | None
    """Called when Kafka has the record, or with the error."""


class PublishArguments(_CommonArguments, total=False):
    """Arguments by name of `publish` and `delta_publish`, except `ack`, on which the result depends."""

    expiration: float | None
    """Seconds until the record expires."""


class DeleteArguments(_CommonArguments, total=False):
    """Arguments by name of `sow_delete`, except `ack`, on which the result depends."""

    keys: Iterable[Value] | None
    """The SOW keys of several records."""
    data: Value
    """A message with the key fields of one record."""
    filter: str | None
    """Deletes every record that matches."""


class PublishOptions(NamedTuple):
    """The options of one `publish`, `delta_publish` or `sow_delete`; `Client.publish` describes their effects."""

    headers: Mapping[str, str | bytes] | None = None
    """More headers, passed on to subscribers."""
    ack: str | None = None
    """The types of acks to wait for, separated by commas; None: no acks."""
    on_ack: OnAck | None = None
    """Called with each ack."""
    sequence: int | None = None
    """The publisher's own growing number; None: the client assigns one to commands with acks."""
    expiration: float | None = None
    """Seconds until the record expires; 0 means never, None means the topic's setting."""
    correlation_id: str | None = None
    """Passed on to subscribers."""
    command_id: str | None = None
    """The id that the command's acks carry."""
    on_delivery: Delivered | None = None
    """Called when Kafka has the record, or with the error."""
    expect_version: int | None = None
    """The version that the record must have, 0 for no record; None: any."""

    def of_headers(self) -> dict[str, str | float]:
        """The options that travel as headers, by name, as far as they are set."""
        return {name: value for name in HEADER_ARGUMENTS if (value := getattr(self, name)) is not None}

    def ack_types(self, *, is_delete: bool) -> tuple[AckType, ...]:
        """The acks to ask for; a conditional command asks for its outcome where the caller does not say.

        Raises:
            ConfigurationError: an ack type does not exist, or `on_ack` would receive none.
        """
        asked = "processed" if self.ack is None and self.expect_version is not None else self.ack
        types = () if asked is None else ack_types(asked, is_delete=is_delete)
        if self.on_ack is not None and not types:
            raise ConfigurationError("on_ack receives acks; ask for some, such as ack='persisted'")
        return types


class Outbox:
    """Builds Kafka keys, values and headers for the commands of one topic."""

    def __init__(self, topic: str, settings: TopicConfig, codec: Codec, names: KafkaNames | None = None) -> None:
        self.kafka_topic = (names or KafkaNames()).topic(topic, "publish")
        self._default_command = settings.default_command
        # Keys written here are text, even where other publishers write binary keys: the header marks them for a worker.
        self._marks: Headers = [] if settings.key_format == "text" else [text_key_header(self.kafka_topic)]
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
        **arguments: str | float,
    ) -> tuple[bytes, bytes | None, Headers | None]:
        """The Kafka key, value and headers of one command.

        Args:
            command: the command.
            data: a parsed value, or `bytes` that are an encoded message already and are sent unchanged.
            key: the SOW key; None: computed from the key fields in the data.
            headers: more headers.
            arguments: the values of `HEADER_ARGUMENTS`, by name.

        Raises:
            RecordRejected: there is no key, a reserved one or one that is not UTF-8, the message cannot be parsed or
                written, or an argument is invalid.
            ConfigurationError: a header that a publisher may not set, or one that is not UTF-8.
        """
        all_headers: Headers = [*self._marks, *named_headers(headers or {})]
        if arguments:
            for name, argument in HEADER_ARGUMENTS.items():
                if name in arguments:
                    all_headers.append(argument.write(arguments[name]))
        raw = self._encoded_key(self._key(command, data, all_headers) if key is None else key)
        refuse_reserved(raw)
        message: bytes | None = None
        if command != "sow_delete":
            message = self._encode(command, data, all_headers)
            if command != self._default_command:
                all_headers.append(command_header(command))
        # A tombstone means sow_delete without a header.
        return raw, message, all_headers or None

    def delete(
        self,
        key: str | None,
        data: Value,
        headers: Mapping[str, str | bytes] | None,
        **arguments: str | float,
    ) -> tuple[bytes, None, Headers | None]:
        """The Kafka key, value and headers that delete one record; the key may be computed from the data."""
        raw, _, all_headers = self.record("sow_delete", data, key, headers, **arguments)
        return raw, None, all_headers

    def _encode(self, command: Command, data: Value, headers: Headers) -> bytes:
        """Encode the message; parts that the format puts into headers are added to `headers`."""
        if isinstance(data, bytes):
            if not data:
                self._decode(command, data, headers)  # A delete would be null; this is often meant as one.
            return data
        try:
            value, more = self._codec.encode_command(data, is_delta=command == "delta_publish")
        except TypeError as error:
            raise RecordRejected(self._unwritable, str(error)) from None
        headers += more
        return value

    def _decode(self, command: Command, data: bytes, headers: Headers) -> Value:
        return self._codec.decode_command(data, headers, is_delta=command == "delta_publish")

    def _encoded_key(self, key: str) -> bytes:
        """The bytes of a key, of the message or of the caller."""
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise RecordRejected(self._unwritable, f"the key is not UTF-8 text: {error.object!r:.100}") from None

    def _key(self, command: Command, data: Value, headers: Headers) -> str:
        """The key, computed from the message."""
        if not self._key_fields.pointers:
            raise RecordRejected("missing_key", "the topic's key is explicit: each message needs one, by key=")
        if isinstance(data, bytes):
            data = self._decode(command, data, headers)
        if type(data) is not dict:
            raise RecordRejected("not_an_object", "a record is an object; this message is not")
        text = self._key_fields.text(data)
        if text is None:
            fields = ", ".join(self._key_fields.pointers)
            raise RecordRejected("missing_key", f"the message lacks a key field; the topic's are {fields}")
        return text


Default: TypeAlias = Callable[[Any], Any]
"""Returns another value for one that a message type does not write, as `default` of `json.dumps` does."""

PLAIN: Final = frozenset((dict, list, str, int, float, bool, NoneType, bytes, Decimal))
"""The types of values that each message type with such values writes, as far as it has them."""

_SCALARS: Final = PLAIN - {dict, list}


_LEVELS_MAX: Final = 256
"""Deeper parts of a value, as of one that contains itself, stay as they are: each message type refuses them."""


def plain_value(value: Any, default: Default | None, levels: int = _LEVELS_MAX) -> Value:
    """Return a value of dicts, lists and plain values.

    A dataclass and a pydantic model become objects with their fields, any other mapping a dict, a tuple a list, and a
    subclass of a plain type, such as an Enum of texts, that type's value.

    Args:
        value: the value.
        default: called with a value of any other type; None: such a value stays, and the message type decides.
        levels: how many levels of it are looked at.
    """
    kind, below = type(value), levels - 1
    if kind in _SCALARS or levels == 0:
        return value
    if isinstance(value, Mapping):
        return {name: plain_value(part, default, below) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part, default, below) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_value(getattr(value, field.name), default, below) for field in fields(value)}
    if (model_dump := getattr(value, "model_dump", None)) is not None:
        return plain_value(model_dump(), default, below)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value if default is None else plain_value(_replaced(value, default), default, below)


def is_plain(value: Any) -> bool:
    """Return whether a value needs no function that replaces parts of it; arguments as `plain_value`."""
    others: list[Any] = []
    plain_value(value, others.append)
    return not others


def _replaced(value: Any, default: Default) -> Any:
    """The value that `default` returns.

    Raises:
        TypeError: it is the same value again.
    """
    other = default(value)
    if other is value:
        raise TypeError(f"default= has returned the {type(value).__name__} that it was called with: {value!r:.100}")
    return other
