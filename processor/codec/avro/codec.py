"""Avro, by fastavro: records of one reader schema, of any schema that their publishers write.

With a schema registry a message names its writer's schema: by Confluent's frame (a zero byte and the id, or a one byte
and the GUID), or by header `__value_schema_id`, which holds those same bytes. Without one, messages have no frame and
are of the topic's schema, and a delta with header `fields` is of the schema derived from it.
"""

from __future__ import annotations

from typing import ClassVar

from processor.errors import ConfigurationError, RecordRejected

try:
    import fastavro  # noqa: F401 - first, so that one sentence says what is missing
except ImportError as error:
    raise ConfigurationError(
        f"message type avro needs a package that is not installed ({error.name}): pip install 'sowstream[avro]'"
    ) from None
from processor.codec.avro.default import compile_complete
from processor.codec.avro.delta import delta_schema_text, fields_header, merging_members, pick, read_fields
from processor.codec.avro.resolve import Resolver
from processor.codec.avro.schema import Schema, field_type
from processor.codec.avro.wire import Wire
from processor.codec.avro.write import Prepare, compile_prepare
from processor.codec.contract import Codec, CodecOptions
from processor.codec.frame import SCHEMA_ID_HEADER, id_frame
from processor.codec.schema_registry.schemas import SchemaText
from processor.codec.schema_registry.topic_schema import (
    FramedSchemas,
    UnusableSchema,
    header_frame,
    message_frame,
    open_topic_schema,
)
from processor.codec.value_checks import check_writable_depth
from processor.record import Headers, Value
from processor.values.kinds import FieldType
from processor.wire.headers import FIELDS_NAME


class _Reading:
    """The reader of messages of one writer's schema: by fastavro, then to values of the topic's schema."""

    __slots__ = ("partial", "whole", "wire")

    def __init__(self, writer: Schema, reader: Schema, max_depth: int) -> None:
        self.wire = Wire(writer, max_depth)
        resolver = Resolver(writer, reader, self.wire.branch_names)
        self.whole = resolver.compile(partial=False)
        self.partial = resolver.compile(partial=True)


class _Writing:
    """The writer of messages of one schema."""

    __slots__ = ("_depth_max", "_prefix", "_prepare", "_wire")

    def __init__(self, schema: Schema, max_depth: int, schema_id: int | None) -> None:
        self._wire = Wire(schema, max_depth)
        self._prepare: Prepare = compile_prepare(schema, self._wire.branch_names)
        self._prefix = b"" if schema_id is None else id_frame(schema_id)
        self._depth_max = max_depth if schema.depth > max_depth else None

    def write(self, value: Value) -> bytes:
        if self._depth_max is not None:
            check_writable_depth(value, self._depth_max)
        try:
            return self._wire.write(self._prepare(value), self._prefix)
        except TypeError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro answers a value that does not fit with any error
            raise TypeError(f"not a value of the schema: {type(error).__name__}: {error!s:.200}") from None


class AvroCodec(Codec):
    """The message type `avro`.

    Logical types are Python's: Decimal, UUID, date, time, datetime. Records and maps are objects and merge; a value of
    a union that Python's type does not tell apart knows its branch (`avro_branch`).
    """

    uses_headers: ClassVar[bool] = True
    completes: ClassVar[bool] = True
    header_names: ClassVar[frozenset[str]] = frozenset((SCHEMA_ID_HEADER,))

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Find the schema of the records; with a registry, have it registered with that of the deltas, to write by.

        Raises:
            ConfigurationError: there is no schema, or one that cannot be used.
            Stop: the registry does not answer.
        """
        options = options or CodecOptions()
        self._max_depth = options.max_depth
        topic = open_topic_schema(options, "avro", "an Avro schema (.avsc)")
        self._registry = topic.registry
        try:
            self._schema = Schema(topic.schema.text, topic.schema.references)
            delta = Schema(delta_text := delta_schema_text(self._schema))
            self._complete = compile_complete(self._schema)
            self._merging = merging_members(delta)
            self._own = _Reading(self._schema, self._schema, self._max_depth)
            self._own_delta = _Reading(delta, self._schema, self._max_depth)
            schema_id, delta_id = topic.register(options, delta_text)
            self._records = _Writing(self._schema, self._max_depth, schema_id)
            self._deltas = _Writing(delta, self._max_depth, delta_id)
        except (UnusableSchema, RecursionError) as error:
            problem = "nested too deep" if isinstance(error, RecursionError) else error
            raise ConfigurationError(f"the schema of topic {options.topic!r}, {topic.place}: {problem}") from None
        self._own_prefix = b"" if schema_id is None else id_frame(schema_id)
        if self._registry is not None:
            self._framed = FramedSchemas(self._registry, self._reading, {})

    def decode(self, data: bytes) -> Value:
        """Parse a whole message: fields that its writer's schema lacks have their defaults.

        Raises:
            RecordRejected: `undecodable`, `too_deep`, `schema_not_found` or `schema_mismatch`.
            PartitionHeld, Stop: the registry does not answer, with the option `registry_wait_s` or without.
        """
        reading, start = self._of_message(data)
        return reading.whole(reading.wire.read(data, start))

    def decode_own(self, data: bytes) -> Value:
        """Parse a stored record, of the topic's schema or of an earlier one."""
        prefix = self._own_prefix
        # Without an id of its own it knows by the frames alone what it was written by.
        if not data.startswith(prefix) or (self._registry is not None and not prefix):
            return self.decode(data)
        return self._own.whole(self._own.wire.read(data, len(prefix)))

    def encode(self, value: Value) -> bytes:
        """Write a whole record; its missing fields get their defaults.

        Raises:
            TypeError: a field is missing, unknown, or of another type; the message names it.
        """
        return self._records.write(value)

    def complete(self, record: Value) -> bool:
        """Set in place the fields that a record of the topic's schema lacks and has a default for; takes nothing away.

        Raises:
            RecordRejected: `schema_mismatch`: one needs a value.
        """
        self._complete(record)
        return False

    def field_type(self, path: tuple[str, ...]) -> FieldType:
        """The kinds of values that the topic's schema allows in a field."""
        return field_type(self._schema, path)

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Value:
        """Parse a message by its headers `__value_schema_id` and `fields`.

        Raises:
            RecordRejected: as `decode`; `bad_header`.
            PartitionHeld, Stop: as `decode`.
        """
        schema_frame: bytes | None = None
        fields: bytes | None = None
        has_fields = False
        for name, value in headers:
            if name == SCHEMA_ID_HEADER:
                schema_frame = value
            elif name == FIELDS_NAME:
                fields, has_fields = value, True
        if schema_frame is not None and self._registry is not None:
            reading, start = self._framed.of_frame(header_frame(schema_frame)), 0
        elif is_delta and has_fields and self._registry is None:
            reading, start = self._own_delta, 0
        else:
            reading, start = self._of_message(data)
        raw = reading.wire.read(data, start)
        if not is_delta:
            return reading.whole(raw)
        if has_fields and (tree := read_fields(fields)) is not None:
            raw = pick(raw, tree, reading.wire.whole)
        try:
            return reading.partial(raw)
        except KeyError as error:
            # The writer's object merges, the topic's is one of several types: only all of it can be taken.
            raise RecordRejected(
                "bad_header", f"header {FIELDS_NAME}: {error} is left out of what replaces whole"
            ) from None

    def encode_delta(self, delta: Value) -> tuple[bytes, Headers]:
        """Write a part of a record, by the schema of deltas, and what is in it as header `fields`.

        Raises:
            TypeError: as `encode`.
        """
        return self._deltas.write(delta), [(FIELDS_NAME, fields_header(delta, self._merging))]

    def _of_message(self, data: bytes) -> tuple[_Reading, int]:
        """The reader of a message, and the end of its frame."""
        if self._registry is None:
            return self._own, 0
        size = message_frame(data)
        return self._framed.of_frame(data[:size]), size

    def _reading(self, schema: SchemaText) -> _Reading:
        """The reader of messages of a publisher's schema."""
        try:
            return _Reading(Schema(schema.text, schema.references), self._schema, self._max_depth)
        except RecursionError:
            raise UnusableSchema("nested too deep") from None
