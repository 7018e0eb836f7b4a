"""The contract of a message type, bytes ⇄ plain Python values, and how its codec is found by its entry point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

from processor.config.kafka_names import KafkaNames, Role
from processor.entry_points import find_installed, load_installed
from processor.errors import ConfigurationError, RecordRejected
from processor.record import Headers, Value
from processor.values.kinds import FieldType

if TYPE_CHECKING:
    from processor.config import Config, SchemaConfig, TopicConfig


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """The settings of a topic for its message type; each type takes those it needs."""

    max_depth: int = 128
    """Deepest nesting accepted, in objects and arrays."""
    topic: str = ""
    """The family's name: where a registry keeps its schemas."""
    schema: SchemaConfig | None = None
    """The schema of the records: a file, or a subject of the registry. None: the message type's own way."""
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the schema registry's client, `url` first; empty: there is none."""
    registry_wait_s: float | None = None
    """Longest wait for the registry while a message is read, in seconds; then it raises PartitionHeld, and the registry
    is asked in the background. None: until there is an answer, half a minute at most."""
    separator: str = "\x01"
    """The separator between the fields of `fix` and `nvfix`."""
    parts: tuple[str, ...] = ()
    """The message types of a composite's parts."""
    reads_only: bool = False
    """True: nothing will be written, so a registry is only asked, and never changed."""
    names: KafkaNames = field(default_factory=KafkaNames)
    """The Kafka names of all families."""

    def subject(self, role: Role) -> str:
        """The subject of a registry that has the schemas of a Kafka topic's values, as Java's serializers name it."""
        return f"{self.names.topic(self.topic, role)}-value"


_ANY_VALUE: Final = FieldType()


class JsonText(NamedTuple):
    """The parts of JSON's `decode` and `encode`, for compiled code that does their work itself."""

    parse: Callable[[bytes], Value]
    """A text's value, numbers as 64 bits have them; raises ValueError."""
    write: Callable[[Value], bytes]
    """A value's text, compact; raises TypeError."""
    survives: Callable[[bytes, bytes], bool]
    """True if a text is worth as much as what `write` made of it: `exact.survives`."""
    max_depth: int
    """Deepest nesting accepted, in objects and arrays."""


def empty_message() -> RecordRejected:
    """The rejection of an empty value by a message type that has no empty message."""
    return RecordRejected("undecodable", "an empty value is no message; send null, a tombstone, to delete a record")


class Codec(ABC):
    """One message type, made with its options. Holds no state between calls: any number of partitions share one."""

    can_delta: ClassVar[bool] = True
    """False for types that carry full messages only: then a delta publish replaces, and a delta is the message."""
    uses_headers: ClassVar[bool] = False
    """True if headers carry a part of the message; then `decode_command` and `encode_delta` have their own code."""
    completes: ClassVar[bool] = False
    """True if a merged record is not always one that this type can hold; then `complete` makes it one."""
    json_text: JsonText | None = None
    """Given by a type whose messages are JSON, and are read and written in no other way."""
    header_names: ClassVar[frozenset[str]] = frozenset()
    """Those headers, as far as they are not in `wire.headers.Name`: they do not travel on by themselves."""

    @abstractmethod
    def decode(self, data: bytes) -> Value:
        """Parse a whole message that anybody may have written; an empty one is refused, if the type has none.

        Raises:
            RecordRejected: `undecodable`, `too_deep`, `schema_not_found` or `schema_mismatch`, with the position.
        """

    def decode_own(self, data: bytes) -> Value:
        """Parse a message that `encode` wrote, such as a stored record: the same value, without the checks.

        Raises:
            RecordRejected: as `decode`.
        """
        return self.decode(data)

    def decode_own_many(self, messages: Sequence[bytes]) -> list[Value]:
        """`decode_own` of each of them; for message types that do it more quickly for many.

        Raises:
            RecordRejected: as `decode`; one of them is bad, and it is open which.
        """
        return list(map(self.decode_own, messages))

    @abstractmethod
    def encode(self, value: Value) -> bytes:
        """Write one whole message of any Python value: `decode` reads the same value back.

        Raises:
            TypeError: the message type has no way to write this value; the message names the part.
        """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A class with an `encode` of its own writes everything by it, unless it has an `encode_decoded` as well."""
        super().__init_subclass__(**keywords)
        if "encode" in vars(cls) and "encode_decoded" not in vars(cls):
            cls.encode_decoded = Codec.encode_decoded  # type: ignore[method-assign]

    def encode_decoded(self, value: Value) -> bytes:
        """Write a message of values that `decode` returned: `encode` without the checks of Python's values.

        Raises:
            TypeError: as `encode`, as far as it is noticed.
        """
        return self.encode(value)

    def complete(self, record: Value) -> bool:  # noqa: ARG002
        """Set in place the fields that a full record cannot leave out, and remove those that it cannot hold.

        Returns:
            True if something was taken away: then the change must be computed again.

        Raises:
            RecordRejected: `schema_mismatch`: something is missing that has no default.
        """
        return False

    def field_type(self, path: tuple[str, ...]) -> FieldType:  # noqa: ARG002
        """The values that this type can write in the field at a path of names; merge rules are checked by it."""
        return _ANY_VALUE

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:  # noqa: ARG002
        """Parse a message with its headers; a delta is the fields that it carries, and no others.

        Raises:
            RecordRejected: as `decode`; `bad_header`.
        """
        return self.decode(data)

    def encode_delta(self, delta: Value) -> tuple[bytes, Headers]:
        """Write a part of a record, and the headers without which it cannot be read.

        Raises:
            TypeError: as `encode`.
        """
        return self.encode(delta), []

    def encode_command(self, value: Value, *, is_delta: bool) -> tuple[bytes, Headers]:
        """Write the message of a publisher, and the headers without which it cannot be read.

        Raises:
            TypeError: as `encode`; the message is empty, and this type has no empty messages.
        """
        is_part = is_delta and self.can_delta
        data, headers = self.encode_delta(value) if is_part else (self.encode(value), [])
        if not data:
            try:
                self.decode_command(data, headers, is_delta=is_part)
            except RecordRejected as error:
                raise TypeError(f"it has no fields to write: {error.detail}") from None
        return data, headers


GROUP = "sowstream.codecs"
"""The entry-point group: the name is the message type, the object a class or function that makes its `Codec`."""


def load_codec(message_type: str, options: CodecOptions | None = None) -> Codec:
    """Make the codec of a message type.

    Args:
        message_type: its name in the entry-point group, such as `json`.
        options: the topic's settings for it; None: the defaults.

    Raises:
        ConfigurationError: there is no such message type, it cannot be imported, or it refuses an option.
    """
    noun = "message type"
    make = load_installed(find_installed(GROUP, noun, message_type), noun)
    return cast("Codec", make(options or CodecOptions()))


def codec_options(
    topic: TopicConfig,
    *,
    name: str,
    registry: Mapping[str, str] | None = None,
    registry_wait_s: float | None = None,
    reads_only: bool = False,
    names: KafkaNames | None = None,
) -> CodecOptions:
    """The settings of a topic for its message type.

    Args:
        topic: the settings.
        name: the family's name.
        registry: settings of the schema registry's client; None: there is none.
        registry_wait_s: how long reading a message may wait for it; None: until there is an answer.
        reads_only: whether nothing will be written.
        names: the Kafka names of all families; None: those without a prefix.
    """
    return CodecOptions(
        max_depth=topic.max_depth,
        topic=name,
        schema=topic.message_schema,
        registry=registry or {},
        registry_wait_s=registry_wait_s,
        separator=topic.separator,
        parts=topic.parts,
        reads_only=reads_only,
        names=names or KafkaNames(),
    )


OPTIONS_TAKEN: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("json", "msgpack", "bson", "xml", "binary"), ()),
    **dict.fromkeys(("avro", "json-schema", "protobuf"), ("schema",)),
    **dict.fromkeys(("fix", "nvfix"), ("separator",)),
    **dict.fromkeys(("composite-local", "composite-global"), ("parts",)),
}
"""Settings of a topic that each message type of the product reads; a composite also those of its parts."""


def check_options(name: str, topic: TopicConfig) -> None:
    """Refuse settings that the message type does not read; a message type of a plug-in may read all of them.

    Raises:
        ConfigurationError: with the message types that read the setting.
    """
    values = {"schema": topic.message_schema, "separator": topic.separator, "parts": topic.parts}
    defaults = {"schema": None, "separator": CodecOptions().separator, "parts": ()}
    of_type = OPTIONS_TAKEN.get(topic.message_type, tuple(values))
    of_parts = [OPTIONS_TAKEN.get(part, tuple(values)) for part in topic.parts] if "parts" in of_type else []
    for option, value in values.items():
        if value != defaults[option] and not any(option in taken for taken in (of_type, *of_parts)):
            types = ", ".join(sorted(known for known, taken in OPTIONS_TAKEN.items() if option in taken))
            raise ConfigurationError(
                f"{name}: {option} is for message_type {types}, and {topic.message_type} does not read it; remove it, "
                "or set another message_type"
            )


def codec_of(config: Config, name: str, *, registry_wait_s: float | None = None) -> Codec:
    """Make the codec of a configured topic; a copy of another one has the other's.

    Args:
        config: the settings.
        name: the topic.
        registry_wait_s: how long reading a message may wait for the schema registry; None: until there is an answer.

    Raises:
        ConfigurationError: as `load_codec`; no such topic.
        Stop: the schema registry does not answer.
    """
    topic, root = config.topic(name), config.root(name)
    registry = config.schema_registry
    options = codec_options(
        topic, name=root, registry=registry, registry_wait_s=registry_wait_s, names=config.kafka_names
    )
    try:
        return load_codec(topic.message_type, options)
    except ConfigurationError as error:
        # Some say it themselves.
        told = str(error)
        raise ConfigurationError(told if repr(root) in told else f"topic {root!r}: {told}") from error


def not_installed(message_type: str, error: ImportError) -> ConfigurationError:
    """The error of a message type that cannot be imported, with the command that mends it."""
    return ConfigurationError(
        f"message type {message_type!r} needs a package that is not installed ({error}); "
        "install it: pip install 'sowstream[formats]'"
    )
