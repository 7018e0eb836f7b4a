"""Converts the latest records of a partition to Arrow batches: the columns of the record, then its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from processor.codec import Codec
from processor.errors import ConfigurationError, RecordRejected, Stop
from processor.filter import RecordMetadata, compile_filter
from processor.record import Headers, Value
from processor.wire.headers import read_text
from processor.wire.record_headers import expires_at_ms_of, input_place, version_of
from processor.wire.subscriber_headers import correlation_id
from spark_integration.read.metadata_columns import SOW
from spark_integration.read.misfit import MISFIT, MISFIT_TYPE, OnMisfit
from spark_integration.read.source.source_options import SourceMetadata
from spark_integration.read.values import compile_struct

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

METADATA: Final = StructType(
    [
        StructField("sow_key", StringType()),
        StructField("version", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("expires_at", TimestampType()),
        StructField("source", StringType()),
        StructField("headers", HEADERS),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)
"""The metadata of each record, the same as of `read_sow`."""

_MISFIT: Final = StructField(MISFIT, MISFIT_TYPE)

VALUE: Final = "value"
"""The column for a record as JSON text."""

_BATCH_ROWS: Final = 4096
_YEAR_9999_MS: Final = 253_402_300_799_999


class Latest(NamedTuple):
    """The last record of a key."""

    key: bytes | None
    value: bytes
    headers: Headers | None
    offset: int
    timestamp_ms: int


class LatestRows:
    """Converts the records of one partition to rows."""

    def __init__(
        self,
        codec: Codec,
        schema: StructType,
        matching: str | None,
        *,
        is_text: bool,
        topic: str,
        family: str,
        metadata: Sequence[StructField],
        shows_misfits: bool = False,
    ) -> None:
        """Compile the filter and the conversion to columns.

        Args:
            codec: the message type.
            schema: the columns, in order.
            matching: a filter; None: all records.
            is_text: whether the record is one column with its text.
            topic: the Kafka topic, for error messages.
            family: the name of the topic for filters.
            metadata: the metadata columns among them.
            shows_misfits: whether a record that does not fit its columns is a row.

        Raises:
            ConfigurationError: a column has a type without values in any message type.
        """
        self._codec, self._schema, self._topic, self._family = codec, schema, topic, family
        self._filter = None if matching is None else compile_filter(matching)
        self._shows_misfits, self._metadata = shows_misfits, [field.name for field in metadata]
        struct = StructType(record_fields(schema, metadata))
        self._convert = None if is_text else compile_struct(struct)
        self._decimals = _decimals(struct)

    def batches(self, latest: Sequence[Latest], partition: int) -> Iterator[pa.RecordBatch]:
        """The rows of the records that match."""
        import pyarrow as pa  # noqa: PLC0415 - needed here, on an executor
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - as above

        schema = to_arrow_schema(self._schema, timestamp_utc=True)
        for begin in range(0, len(latest), _BATCH_ROWS):
            chunk = latest[begin : begin + _BATCH_ROWS]
            rows = [(one, row) for one in chunk if (row := self._row(one, partition)) is not None]
            try:
                yield _batch([row for _, row in rows], schema)
            except (pa.ArrowException, OverflowError) as error:
                problem = f"a value has no room in its column: {error}"
                if not self._shows_misfits:
                    raise Stop(
                        f"{self._topic}, partition {partition}: {problem}; give a schema that the records fit"
                    ) from None
                yield _batch([self._fitting(one, row, partition, schema) for one, row in rows], schema)

    def _fitting(self, latest: Latest, row: dict[str, Any], partition: int, schema: pa.Schema) -> dict[str, Any]:
        """The row itself, or that of a misfit if a value has no room in its column."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        try:
            _batch([row], schema)
        except (pa.ArrowException, OverflowError) as error:
            return self._misfit(latest, partition, f"a value has no room in its column: {error}")
        return row

    def _row(self, latest: Latest, partition: int) -> dict[str, Any] | None:
        """The row of a record; None where the filter does not match."""
        try:
            return self._matching_row(latest, partition)
        except _Unfit as error:
            if self._shows_misfits:
                return self._misfit(latest, partition, str(error))
            raise self._undecodable(latest, partition, str(error)) from None

    def _misfit(self, latest: Latest, partition: int, problem: str) -> dict[str, Any]:
        misfit = {"reason": problem, "topic": self._topic, "value": latest.value}
        described = {**_described(latest, partition), MISFIT: misfit}
        return {**dict.fromkeys(self._schema.names), **self._placed(described)}

    def _placed(self, described: dict[str, Any]) -> dict[str, Any]:
        return {SOW: described} if self._metadata == [SOW] else {name: described[name] for name in self._metadata}

    def _matching_row(self, latest: Latest, partition: int) -> dict[str, Any] | None:
        described = {**_described(latest, partition), MISFIT: None}
        row = self._placed(described)
        decoded = None
        if self._filter is not None or self._convert is not None:
            decoded = self._decoded(latest)
        if self._filter is not None and not self._filter.matches(decoded, self._facts(latest, described["sow_key"])):
            return None
        if self._convert is None:
            return {**row, VALUE: latest.value.decode(errors="replace")}
        try:
            return {**self._convert(self._decimals(decoded)), **row}
        except TypeError as error:
            raise _Unfit(str(error)) from None

    def _decoded(self, latest: Latest) -> Value:
        try:
            return self._codec.decode_command(latest.value, latest.headers or [], is_delta=False)
        except RecordRejected as error:
            raise _Unfit(str(error)) from None

    def _facts(self, latest: Latest, key: str) -> RecordMetadata:
        correlation = correlation_id(latest.headers) or ""
        return RecordMetadata(len(latest.value), key or "", self._family, correlation, latest.timestamp_ms)

    def _undecodable(self, latest: Latest, partition: int, problem: str) -> Stop:
        return Stop(
            f"{self._topic}, partition {partition}, offset {latest.offset}, key {latest.key!r:.200}: {problem}; "
            "publish the record again, or give a schema that it fits"
        )


class _Unfit(Exception):
    """A record that does not fit its columns."""


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - needed here, on an executor

    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def metadata_columns(on_misfit: OnMisfit, metadata: SourceMetadata) -> list[StructField]:
    """The metadata columns of a table."""
    fields = METADATA.fields if on_misfit == "fail" else [*METADATA.fields, _MISFIT]
    match metadata:
        case "struct":
            return [StructField(SOW, StructType(fields))]
        case "flat":
            return fields
        case "none":
            return []


def record_fields(schema: StructType, metadata: Sequence[StructField]) -> list[StructField]:
    """The columns of a table that are fields of the record."""
    taken = [field.name for field in metadata]
    return [field for field in schema.fields if field.name not in taken]


def refuse_metadata(schema: StructType, metadata: Sequence[StructField]) -> None:
    """Make sure that the metadata columns have their types and occur once.

    Raises:
        ConfigurationError: a column has another type, or occurs twice.
    """
    columns = {field.name: field for field in metadata}
    for field in schema.fields:
        same = [name for name in schema.names if name.lower() == field.name.lower()]
        meta = columns.get(field.name.lower())
        if meta is None:
            continue
        if len(same) > 1 or field.name != meta.name or not _is_part(field.dataType, meta.dataType):
            remedy = (
                "leave it out of the schema, or read without one and decode column `value` with from_json"
                if meta.name == SOW
                else "leave option 'metadata' out: the metadata is in the struct _sow then"
            )
            raise ConfigurationError(
                f"field {field.name!r} of the schema has the name of a metadata column, which is "
                f"{meta.dataType.simpleString():.200}; {remedy}"
            )


def _is_part(kind: DataType, of: DataType) -> bool:
    """Return whether a column has the type of the metadata, or a struct has some of its fields."""
    if not isinstance(kind, StructType) or not isinstance(of, StructType):
        return kind == of
    types = {field.name: field.dataType for field in of.fields}
    return all(types.get(field.name) == field.dataType for field in kind.fields)


def expires_at_ms(headers: Headers | None) -> int | None:
    """Time of a record's expiry, milliseconds since the epoch; None: never."""
    time_ms = expires_at_ms_of(headers)
    return time_ms if time_ms and time_ms <= _YEAR_9999_MS else None


def _described(latest: Latest, partition: int) -> dict[str, Any]:
    expires = expires_at_ms(latest.headers)
    return {
        "sow_key": None if latest.key is None else latest.key.decode(errors="replace"),
        "version": version_of(latest.headers),
        "timestamp": latest.timestamp_ms * 1000,
        "expires_at": None if expires is None else expires * 1000,
        "source": read_text(input_place(latest.headers)),
        "headers": None
        if latest.headers is None
        else [{"key": name, "value": value} for name, value in latest.headers],
        "partition": partition,
        "offset": latest.offset,
    }


def _decimals(kind: DataType) -> Callable[[Value], Value]:
    """Compile a conversion of floats to decimals for columns of decimals, as JSON has one kind of number."""
    match kind:
        case DecimalType():
            return lambda value: Decimal(repr(value)) if type(value) is float else value
        case ArrayType(elementType=element):
            inner = _decimals(element)
            return lambda value: list(map(inner, value)) if isinstance(value, list) else value
        case MapType(valueType=member):
            each = _decimals(member)
            return lambda value: _mapped(value, dict.fromkeys(value, each)) if isinstance(value, dict) else value
        case StructType():
            of_members = {
                field.name: _decimals(field.dataType) for field in kind.fields if _has_decimals(field.dataType)
            }
            return lambda value: _mapped(value, of_members) if of_members and isinstance(value, dict) else value
        case _:
            return lambda value: value


def _has_decimals(kind: DataType) -> bool:
    match kind:
        case ArrayType(elementType=inner) | MapType(valueType=inner):
            return _has_decimals(inner)
        case StructType():
            return any(_has_decimals(field.dataType) for field in kind.fields)
        case _:
            return isinstance(kind, DecimalType)


def _mapped(value: Value, members: Mapping[str, Callable[[Value], Value]]) -> Value:
    """Convert some members of an object."""
    return {**value, **{name: change(value[name]) for name, change in members.items() if name in value}}
