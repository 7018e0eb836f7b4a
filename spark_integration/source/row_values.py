"""Converts Arrow rows to JSON values, the same that `to_json` of Spark writes and `publish_deltas` publishes."""

from __future__ import annotations

import base64
import ctypes
import datetime as dt
from collections.abc import Callable
from math import isfinite, isnan
from typing import Final, TypeAlias

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

Convert: TypeAlias = Callable[[Value], Value]
"""Converts a value of an Arrow column, not null, to a JSON value."""

_MICROSECONDS: Final = "%Y-%m-%dT%H:%M:%S.%f"


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
            return lambda value: value.astimezone(dt.UTC).strftime(_MICROSECONDS) + "Z"
        case TimestampNTZType():
            return lambda value: value.strftime(_MICROSECONDS)
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
