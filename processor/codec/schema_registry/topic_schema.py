"""The schema in which a topic's records are kept, and the schemas that messages name by Confluent's frame."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from processor.codec.contract import CodecOptions, empty_message
from processor.codec.frame import SCHEMA_ID_HEADER, frame_size
from processor.codec.schema_registry.schemas import Registry, SchemaText, SchemaType
from processor.errors import ConfigurationError, RecordRejected


class UnusableSchema(Exception):
    """A schema that is none of its type, or that cannot be compiled; the message says why."""


Compiled = TypeVar("Compiled")

SCHEMAS_MAX: Final = 1000
"""Most schemas of which a topic's codec keeps what it compiled."""


class TopicSchema(NamedTuple):
    """The schema of a topic's records."""

    registry: Registry | None
    """The topic's schema registry; None: it has none."""
    schema: SchemaText
    """The schema."""
    place: str
    """Its place for messages."""

    def register(self, options: CodecOptions, delta_text: str) -> tuple[int | None, int | None]:
        """Have it registered with the schema of deltas, unless the codec only reads.

        Returns:
            The ids of the schemas of records and of deltas to write by; None: messages do not name it.

        Raises:
            ConfigurationError: the registry refuses one.
            Stop: the registry does not answer.
        """
        schema_id = self.schema.schema_id
        if self.registry is None or options.reads_only:
            return schema_id, None
        if schema_id is None:
            schema_id = self.registry.register(options.subject("sow"), self.schema.text)
        return schema_id, self.registry.register(options.subject("delta"), delta_text)


def open_topic_schema(
    options: CodecOptions, message_type: str, noun: str, schema_type: SchemaType = "AVRO"
) -> TopicSchema:
    """Find the schema of a topic's records, by its registry if it has one.

    Args:
        options: the topic's settings.
        message_type: the name of the topic's message type.
        noun: what the file is to be, such as `an Avro schema (.avsc)`.
        schema_type: the type of the registry's schemas.

    Raises:
        ConfigurationError: there is no schema, or its file cannot be read.
        Stop: the registry does not answer.
    """
    registry = Registry(options.registry, options.registry_wait_s, schema_type) if options.registry else None
    return TopicSchema(registry, *topic_schema(options, registry, message_type, noun))


def topic_schema(
    options: CodecOptions, registry: Registry | None, message_type: str, noun: str
) -> tuple[SchemaText, str]:
    """Find the schema of a topic's records: that of the settings, or else a version of a subject.

    Args:
        options: the topic's settings.
        registry: the schema registry; None: there is none.
        message_type: as for `open_topic_schema`.
        noun: likewise.

    Returns:
        The schema, and its place for messages.

    Raises:
        ConfigurationError, Stop: as `open_topic_schema`.
    """
    settings = options.schema
    if settings is not None:
        try:
            content = settings.content()
            if content is not None:
                return SchemaText(content.decode(), ()), settings.place
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigurationError(
                f"topic {options.topic!r}: the schema {settings.place} cannot be read: {problem}; name {noun}"
            ) from None
    if registry is None and settings is not None and settings.subject is not None:
        raise ConfigurationError(
            f"topic {options.topic!r}: its schema is {settings.place}, and the settings name no schema registry; write "
            "schema_registry: {url: http://HOST:8081}"
        )
    if registry is None:
        raise ConfigurationError(
            f"topic {options.topic!r} is of message type {message_type} and has no schema; name a file, schema: FILE, "
            "or a registry, schema_registry: {url: http://HOST:8081}"
        )
    subject = (settings.subject if settings is not None else None) or options.subject("publish")
    version = settings.version if settings is not None else None
    return registry.of_subject(subject, version), f"subject {subject}"


def message_frame(data: bytes) -> int:
    """The size of the frame that a message begins with.

    Raises:
        RecordRejected: `undecodable`: there is none, or the message ends within it.
    """
    if not data:
        raise empty_message()
    size = frame_size(data)
    if size == 0 or len(data) < size:
        raise RecordRejected(
            "undecodable",
            f"no schema: {data[:1].hex() or 'nothing'} where Confluent's frame has 00, and no {SCHEMA_ID_HEADER}"
            if size == 0
            else f"{len(data)} bytes end within the frame",
        )
    return size


def header_frame(value: bytes | None) -> bytes:
    """The frame in header `__value_schema_id`.

    Raises:
        RecordRejected: `bad_header`: it is no frame.
    """
    if not value or frame_size(value) != len(value):
        raise RecordRejected(
            "bad_header",
            f"header {SCHEMA_ID_HEADER}: {(value or b'')[:20].hex()} is neither 00 and an id nor 01 and a GUID",
        )
    return value


def framed_schema(registry: Registry, frame: bytes) -> tuple[SchemaText, int | str]:
    """The schema that a frame names, and its id or GUID.

    Raises:
        RecordRejected: `schema_not_found`, or `schema_mismatch` where it is of another type.
        PartitionHeld, Stop: the registry does not answer.
    """
    schema_id: int | str
    if frame[0] == 0:
        (schema_id,) = struct.unpack(">I", frame[1:5])
    else:
        schema_id = str(uuid.UUID(bytes=frame[1:17]))
    return registry.schema(schema_id), schema_id


class FramedSchemas(Generic[Compiled]):
    """The schemas that frames name, each compiled once for a codec."""

    __slots__ = ("_by_frame", "_compile", "_own", "_registry")

    def __init__(
        self, registry: Registry, compile_schema: Callable[[SchemaText], Compiled], own: Mapping[bytes, Compiled]
    ) -> None:
        """Take what is needed to compile.

        Args:
            registry: the schema registry.
            compile_schema: it raises `UnusableSchema` for a schema that is none of the topic's type.
            own: what is compiled already, by frame, and always kept.
        """
        self._registry = registry
        self._compile = compile_schema
        self._own = own
        self._by_frame = dict(own)

    def of_frame(self, frame: bytes) -> Compiled:
        """Return the compiled form of the schema that a frame names.

        Raises:
            RecordRejected: `schema_mismatch`: it cannot be used; and as `framed_schema`.
            PartitionHeld, Stop: as `framed_schema`.
        """
        compiled = self._by_frame.get(frame)
        if compiled is None:
            schema, shown = framed_schema(self._registry, frame)
            try:
                compiled = self._compile(schema)
            except UnusableSchema as error:
                raise RecordRejected("schema_mismatch", f"schema {shown}: {error}") from None
            if len(self._by_frame) >= SCHEMAS_MAX:
                self._by_frame = dict(self._own)
            self._by_frame[frame] = compiled
        return compiled
