"""Converts Arrow rows to JSON values, the same that `to_json` of Spark writes and `publish_deltas` publishes."""

from __future__ import annotations

import base64
import ctypes
import datetime as dt
from collections.abc import Callable
from math import isfinite, isnan
from typing import TYPE_CHECKING, TypeAlias

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

from processor.errors import ConfigurationError
from processor.record import Value

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
