"""Converts Python values of a message type to values of Arrow columns, without rounding, widening or guessing."""

from __future__ import annotations

import ctypes
import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from processor.errors import ConfigurationError
from processor.record import Value

Convert: TypeAlias = Callable[[Value], Value]
"""Converts a value to one that pyarrow accepts for the column; TypeError for another type."""

_AS_TEXT: Final = frozenset(("UUID", "ObjectId", "DBRef", "Regex", "Code"))
"""Types whose values are converted to their text."""


def compile_struct(struct: StructType, path: str = "", *, of_json: bool = False) -> Convert:
    """Compile a function that converts a record to its columns: null for a missing field.

    Args:
        struct: the columns.
        path: the JSON Pointer of the struct, for messages.
        of_json: whether the records are JSON, which has one kind of number: a column of decimals takes floats too.

    Raises:
        ConfigurationError: a column has a type without values in any message type.
    """
    members = [(field.name, _compile(field.dataType, f"{path}/{field.name}", of_json)) for field in struct.fields]

    def convert(value: Value) -> Value:
        if not isinstance(value, dict):
            raise _unfit(value, path or "the record", "an object")
        get = value.get
        return {
            name: None if (member := get(name)) is None else convert_member(member) for name, convert_member in members
        }

    return convert


def _compile(data_type: DataType, path: str, of_json: bool) -> Convert:
    """Compile a conversion of non-null values of a type."""
    if isinstance(data_type, StructType):
        return compile_struct(data_type, path, of_json=of_json)
    if isinstance(data_type, ArrayType):
        return _array(_compile(data_type.elementType, path, of_json), path)
    if isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType):
        return _map(_compile(data_type.valueType, path, of_json), path)
    if of_json and isinstance(data_type, DecimalType):
        return _decimal_of_json(path)
    for kind, make in _SCALARS:
        if isinstance(data_type, kind):
            return make(path)
    raise ConfigurationError(
        f"schema: {path} is {data_type.simpleString()}, and no message type has such values; give it another type"
    )


def _array(item: Convert, path: str) -> Convert:
    def convert(value: Value) -> Value:
        if not isinstance(value, list | tuple):
            raise _unfit(value, path, "an array")
        return [None if one is None else item(one) for one in value]

    return convert


def _map(member: Convert, path: str) -> Convert:
    def convert(value: Value) -> Value:
        if not isinstance(value, dict):
            raise _unfit(value, path, "an object")
        return [(name, None if one is None else member(one)) for name, one in value.items()]

    return convert


def _of(*kinds: type, meant: str) -> Callable[[str], Convert]:
    """A conversion that accepts values of these types unchanged; a boolean is no number."""

    def make(path: str) -> Convert:
        def convert(value: Value) -> Value:
            if isinstance(value, kinds) and (not isinstance(value, bool) or kinds == (bool,)):
                return value
            raise _unfit(value, path, meant)

        return convert

    return make


def _text(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if isinstance(value, str):
            return value
        if isinstance(value, uuid.UUID) or type(value).__name__ in _AS_TEXT:
            return str(value)
        if isinstance(value, dt.time):
            return value.isoformat()
        raise _unfit(value, path, "text")

    return convert


def _float(path: str) -> Convert:
    number = _of(float, int, meant="a number")(path)

    def convert(value: Value) -> Value:
        held: float = ctypes.c_float(number(value)).value
        if held == value or value != value:  # noqa: PLR0124 - only NaN is not itself
            return held
        raise TypeError(f"{path} is {value!r:.30}, which a float would round; make the column DOUBLE")

    return convert


def _decimal(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if type(value).__name__ == "Decimal128":
            value = value.to_decimal()
        if isinstance(value, Decimal | int) and not isinstance(value, bool):
            return Decimal(value)
        raise _unfit(value, path, "a decimal")

    return convert


def _decimal_of_json(path: str) -> Convert:
    decimal = _decimal(path)
    # The shortest text of a float is the number that was written.
    return lambda value: decimal(Decimal(repr(value)) if type(value) is float else value)


def _date(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value
        raise _unfit(value, path, "a date")

    return convert


def _timestamp(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if hasattr(value, "to_datetime"):  # MessagePack's.
            value = value.to_datetime()
        if isinstance(value, dt.datetime):
            # BSON's have no zone and are in UTC.
            return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        raise _unfit(value, path, "a timestamp")

    return convert


def _local_timestamp(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if isinstance(value, dt.datetime) and value.tzinfo is None:
            return value
        raise _unfit(value, path, "a timestamp without a time zone")

    return convert


_SCALARS: Final[tuple[tuple[type[DataType], Callable[[str], Convert]], ...]] = (
    (StringType, _text),
    (BooleanType, _of(bool, meant="a boolean")),
    (IntegralType, _of(int, meant="an integer")),
    (DecimalType, _decimal),
    (FloatType, _float),
    (DoubleType, _of(float, int, meant="a number")),
    (BinaryType, _of(bytes, bytearray, meant="bytes")),
    (DateType, _date),
    (TimestampType, _timestamp),
    (TimestampNTZType, _local_timestamp),
)


def _unfit(value: Value, path: str, meant: str) -> TypeError:
    return TypeError(f"{path} is {type(value).__name__} where the schema means {meant}")
