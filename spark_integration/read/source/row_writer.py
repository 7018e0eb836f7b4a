"""Publishes the rows of a write, each task as a client of its own, so that workers drop rows that a task writes twice.

Spark repeats a task that failed. Its rows may come in another order then, so that each task sorts them by key, order
and content before it numbers them. Its client name has the id of the write and the number of the task, which are the
same in each attempt; the sequence is the place of the row. An attempt that ends early has written, of each partition,
the first rows of one order, and workers drop these when they come again.
"""

from __future__ import annotations

import base64
import ctypes
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from processor.codec import load_codec
from processor.codec.contract import CodecOptions
from processor.errors import ConfigurationError, RecordRejected
from processor.merge import KeyFields
from processor.record import Headers, Value
from processor.values.pointer import child, names
from processor.wire.columns import REMOVE
from processor.wire.publisher_headers import sequence_headers
from processor.wire.record_headers import command_header
from spark_integration.read.source.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


Convert: TypeAlias = Callable[[Value], Value]
"""Converts a value of an Arrow column, not null, to a JSON value."""


def compile_row(struct: StructType, *, skip_nulls: bool, path: str = "") -> Convert:
    """Compile a function that converts a row to a JSON object.

    Args:
        struct: the columns.
        skip_nulls: whether a null field is left out, at any depth of structs.
        path: the JSON Pointer of the struct, for messages.

    Raises:
        ConfigurationError: a column has a type that JSON does not have.
    """
    members = [(field.name, _compile(field.dataType, skip_nulls, f"{path}/{field.name}")) for field in struct.fields]

    def convert(row: Value) -> Value:
        return {
            name: None if row[name] is None else convert_member(row[name])
            for name, convert_member in members
            if not (skip_nulls and row[name] is None)
        }

    return convert


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Value]]:
    """The rows of an Arrow batch, with timestamps in UTC: in another zone, the first and the last day have no date.

    Raises:
        ConfigurationError: a timestamp is outside of the years 1 to 9999.
    """
    import pyarrow as pa  # noqa: PLC0415 - needed on executors

    schema = pa.schema([field.with_type(_in_utc(field.type)) for field in batch.schema])
    try:
        rows: list[dict[str, Value]] = (batch if schema.equals(batch.schema) else batch.cast(schema)).to_pylist()
    except (OverflowError, ValueError) as error:
        raise ConfigurationError(f"a row has a time outside of the years 1 to 9999: {error}") from None
    return rows


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with UTC in place of other zones."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_in_utc(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _compile(kind: DataType, skip_nulls: bool, path: str) -> Convert:
    match kind:
        case StructType():
            return compile_row(kind, skip_nulls=skip_nulls, path=path)
        case ArrayType(elementType=element):
            item = _compile(element, skip_nulls, path)
            return lambda values: [None if one is None else item(one) for one in values]
        case MapType(keyType=StringType(), valueType=value):
            member = _compile(value, skip_nulls, path)
            # Arrow has the entries of a map.
            return lambda pairs: {name: None if one is None else member(one) for name, one in pairs}
        case StringType() | BooleanType() | IntegralType() | DecimalType():
            return lambda value: value
        case FloatType():
            return _single
        case FractionalType():
            return _number
        case BinaryType():
            return lambda value: base64.b64encode(value).decode()
        case DateType():
            return lambda value: value.isoformat()
        case TimestampType():
            return lambda value: value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        case TimestampNTZType():
            return lambda value: value.isoformat(timespec="microseconds")
        case _:
            raise ConfigurationError(f"column {path} is {kind.simpleString()}, which JSON does not have; cast it")


def _number(value: float) -> Value:
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _single(value: float) -> Value:
    """The number with the fewest digits that is this one in single precision, as Java writes it."""
    if not isfinite(value):
        return _number(value)
    shortest = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next(number for number in shortest if ctypes.c_float(number).value == value)


_DELETE: Final = command_header("sow_delete")


class Message(NamedTuple):
    """One command, before it is numbered; in the order of writing."""

    key: bytes
    order: tuple[Any, ...]
    value: bytes
    """The message; empty in a delete."""
    headers: Headers


class SowWriter(DataSourceArrowWriter):
    """Writes rows as commands of a topic."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Create a writer on the driver.

        Raises:
            ConfigurationError: a column has a type that no message has.
        """
        self._options, self._schema = options, schema
        _Commands(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one task, on an executor.

        Raises:
            ConfigurationError: a row cannot be published, or rows of a key have no order: then the task has written
                nothing.
            Stop: Kafka does not take a record.
        """
        from processor.kafka.clients.publisher import Publisher  # noqa: PLC0415 - needed here, on an executor

        messages = messages_of(iterator, self._options, self._schema)
        context = TaskContext.get()
        assert context is not None, "a task writes"
        client, topic = f"{self._options.client}/{context.partitionId()}", self._options.topic
        publisher = Publisher(self._options.kafka)
        for number, message in enumerate(messages, 1):
            headers = [*message.headers, *sequence_headers(client, number)]
            is_delete = _DELETE in message.headers  # The message of another command may be empty.
            publisher.send(topic, message.key, None if is_delete else message.value, headers)
        publisher.flush()
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: each task has published its rows."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rows of tasks that ended stay published."""


def messages_of(batches: Iterable[pa.RecordBatch], options: WriteOptions, schema: StructType) -> list[Message]:
    """The commands of all rows, in the order of writing.

    Raises:
        ConfigurationError: a row cannot be published, or rows of a key have no order.
    """
    commands = _Commands(options, schema)
    messages = sorted(commands.message(row) for batch in batches for row in rows_of(batch))
    _refuse_unordered(messages)
    return messages


class _Commands:
    """Builds the command of each row."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        settings = options.source.settings
        self._key = KeyFields(tuple(f"/{name}" for name in options.key))
        self._convert = compile_row(
            StructType([schema[name] for name in options.columns]), skip_nulls=options.skip_nulls
        )
        self._codec = settings.codec()
        self._json = load_codec("json", CodecOptions())
        self._is_json = settings.topic.message_type == "json"
        self._message_type = settings.topic.message_type

    def message(self, row: dict[str, Any]) -> Message:
        """The command of a row.

        Raises:
            ConfigurationError: the row has no key, a mask that names no field, or no message of the topic's type.
        """
        options = self._options
        key = self._key_of(row)
        order = tuple((row[name] is not None, row[name]) for name in options.order_by)
        if options.command == "delete" or (options.deleted is not None and row[options.deleted]):
            return Message(key, order, b"", [_DELETE])
        body = self._convert(row)
        headers = [command_header("delta_publish" if options.command == "delta" else "publish")]
        if options.mask is not None:
            body = self._masked(body, row[options.mask])
        if options.removed is not None and row[options.removed]:
            headers.append((REMOVE, self._json.encode([_pointer(name) for name in row[options.removed]])))
        value, added = self._encoded(body)
        return Message(key, order, value, [*headers, *added])

    def _key_of(self, row: dict[str, Any]) -> bytes:
        values = [row[name] for name in self._options.key]
        if any(value is None for value in values):
            raise ConfigurationError(
                f"a row has no key, {dict(zip(self._options.key, values, strict=True))}; drop such rows: this task "
                "has written nothing"
            )
        text = self._key.text_of_values(values if len(values) > 1 else values[0])
        assert text is not None, "the columns have types of keys"
        return text.encode()

    def _encoded(self, body: Value) -> tuple[bytes, Headers]:
        try:
            text = self._json.encode(body)
            if self._is_json:
                return text, []
            value = self._json.decode(text)
            return self._codec.encode_command(value, is_delta=self._options.command == "delta")
        except (TypeError, RecordRejected) as error:
            raise ConfigurationError(
                f"a row is no message of type {self._message_type}: {error}; this task has written nothing"
            ) from None

    def _masked(self, body: Value, mask: Sequence[str] | None) -> Value:
        """The key fields, and the fields that the mask names."""
        if mask is None:
            raise ConfigurationError("the mask of a row is null; give it an empty array where nothing changes")
        masked = {name: body[name] for name in self._options.key if name in body}
        for pointer in map(_pointer, mask):
            _copy(body, masked, names(pointer), pointer)
        return masked


def _copy(source: Value, target: Value, path: Sequence[str], pointer: str) -> None:
    """Copy the value at a path into another object."""
    *parents, last = path
    for name in parents:
        source = source.get(name) if isinstance(source, dict) else None
        if not isinstance(source, dict):
            break
        target = target.setdefault(name, {})
    if not isinstance(source, dict) or last not in source:
        raise ConfigurationError(
            f"the mask of a row names {pointer!r}, which the row has no column or value for; add the column, or take "
            "that name out of the mask"
        )
    target[last] = source[last]


def _pointer(name: str) -> str:
    return name if name.startswith("/") else child("", name)


def _refuse_unordered(messages: Sequence[Message]) -> None:
    """Refuse rows of one key that differ without an order.

    Raises:
        ConfigurationError: there are such rows.
    """
    for one, other in pairwise(messages):
        if one[:2] == other[:2] and one != other:
            raise ConfigurationError(
                f"rows of the key {one.key!r:.100} differ, and nothing says which is the later one; name the columns "
                "that do, option 'orderBy'; this task has written nothing"
            )
