"""Converts Python values of a message type to values of Arrow columns, without rounding, widening or guessing."""

from __future__ import annotations

import base64
import ctypes
import datetime as dt
import math
import uuid
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from typing import Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from processor.codec.json import JsonCodec
from processor.errors import ConfigurationError
from processor.record import Value
from processor.values.instant import read_time
from processor.values.key_text import NUMBER_TEXT

Convert: TypeAlias = Callable[[Value], Value]
"""Converts a value to one that pyarrow accepts for the column; TypeError for another type."""

_AS_TEXT: Final = frozenset(("UUID", "ObjectId", "DBRef", "Regex", "Code"))
"""Types whose values are converted to their text."""

_BITS: Final[tuple[tuple[type[DataType], int], ...]] = (
    (ByteType, 8),
    (ShortType, 16),
    (IntegerType, 32),
    (LongType, 64),
)
_NO_NUMBERS: Final = frozenset(("NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"))
_DIGITS: Final = Context(prec=38)
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400


def compile_struct(struct: StructType, path: str = "", *, of_json: bool = False) -> Convert:
    """Compile a function that converts a record to its columns: null for a missing field.

    Args:
        struct: the columns.
        path: the JSON Pointer of the struct, for messages.
        of_json: whether the records are JSON, which has one kind of number, and texts for times and bytes. The rules
            are those of Spark's `from_json` with `read/schemas/json_columns.py`.

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
    if isinstance(data_type, DecimalType):
        return _decimal(path, data_type, of_json=of_json)
    for kind, bits in _BITS:
        if isinstance(data_type, kind):
            return _whole(path, bits)
    for kind, make in (*_OF_JSON, *_SCALARS) if of_json else _SCALARS:
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


def _whole(path: str, bits: int) -> Convert:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Value) -> Value:
        if type(value) is not int and (not isinstance(value, int) or isinstance(value, bool)):
            raise _unfit(value, path, "an integer")
        if low <= value <= high:
            return value
        raise TypeError(f"{path} is {value!r:.30}, which has no room in {bits} bits")

    return convert


def _decimal(path: str, data_type: DecimalType, *, of_json: bool) -> Convert:
    limit, step = Decimal(10) ** (data_type.precision - data_type.scale), Decimal(1).scaleb(-data_type.scale)

    def convert(value: Value) -> Value:
        if type(value).__name__ == "Decimal128":
            value = value.to_decimal()
        elif of_json and type(value) is float:
            # The shortest text of a float is the number that was written.
            value = Decimal(repr(value))
        elif of_json and type(value) is str:
            value = _number_of(value, path)
        if not isinstance(value, Decimal | int) or isinstance(value, bool):
            raise _unfit(value, path, "a decimal")
        exact = Decimal(value)
        if exact.is_finite() and exact.copy_abs() < limit and exact == (held := exact.quantize(step, context=_DIGITS)):
            return held
        raise TypeError(f"{path} is {value!s:.50}, which has no room in {data_type.simpleString()}")

    return convert


def _number_of(text: str, path: str) -> Decimal:
    try:
        if NUMBER_TEXT.fullmatch(text):  # Python reads others, too, such as `1_000`; Spark does not.
            return Decimal(text)
    except InvalidOperation:  # An exponent that no decimal has.
        pass
    raise TypeError(f"{path} is a text where the schema means a decimal")


def _date(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value
        raise _unfit(value, path, "a date")

    return convert


def _timestamp(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if hasattr(value, "to_datetime"):  # MessagePack's.
            try:
                value = value.to_datetime()
            except OverflowError:
                raise TypeError(f"{path} is a time outside of the years 1 to 9999") from None
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
    (FloatType, _float),
    (DoubleType, _of(float, int, meant="a number")),
    (BinaryType, _of(bytes, bytearray, meant="bytes")),
    (DateType, _date),
    (TimestampType, _timestamp),
    (TimestampNTZType, _local_timestamp),
)


def _json_text(path: str) -> Convert:  # noqa: ARG001 - every value has a text
    encode = JsonCodec().encode_decoded
    return lambda value: value if type(value) is str else encode(value).decode()


def _json_number(bits: int) -> Callable[[str], Convert]:
    """The nearest number of a type of floats; a whole number must be there to its last digit."""

    def make(path: str) -> Convert:
        def convert(value: Value) -> Value:
            if type(value) is float:
                held = value if bits == _DOUBLE_BITS else ctypes.c_float(value).value
            elif type(value) is str and value in _NO_NUMBERS:
                return float(value.replace("INF", "inf"))
            elif type(value) in (int, Decimal):
                held = float(value) if bits == _DOUBLE_BITS else ctypes.c_float(float(value)).value
                is_whole = type(value) is int or value.as_tuple().exponent == 0
                if is_whole and (held != value or not -_LONG_END <= value < _LONG_END):
                    raise TypeError(f"{path} is {value!s:.30}, which a number of {bits} bits would round")
            else:
                raise _unfit(value, path, "a number")
            if math.isinf(held):
                raise TypeError(f"{path} is {value!s:.30}, which has no room in {bits} bits")
            return held

        return convert

    return make


_DOUBLE_BITS: Final = 64
_LONG_END: Final = 2**63


def _json_bytes(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if type(value) is not str:
            raise _unfit(value, path, "bytes in Base64")
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:  # Also of a character beyond ASCII.
            raise TypeError(f"{path} is a text where the schema means bytes in Base64") from None

    return convert


def _json_date(path: str) -> Convert:
    def convert(value: Value) -> Value:
        if type(value) is str and value[10:11] in ("", "T", " "):
            instant = read_time(value[:10])
            if instant is not None and instant.is_dated:
                return dt.date.fromordinal(_EPOCH_DAY + instant.seconds // _DAY_S)
        raise _unfit(value, path, "a date")

    return convert


def _json_timestamp(path: str) -> Convert:
    """Microseconds since the epoch, as Arrow has them: further digits are cut. A whole number is seconds."""

    def convert(value: Value) -> Value:
        if type(value) is int and _FIRST_SECOND <= value <= _LAST_SECOND:
            return value * 1_000_000
        instant = read_time(value) if type(value) is str else None
        if instant is None or not instant.is_dated:
            raise _unfit(value, path, "a timestamp")
        return instant.seconds * 1_000_000 + int(instant.fraction[:6].ljust(6, "0"))

    return convert


_FIRST_SECOND: Final = -62_135_596_800
"""The year 1."""
_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999."""


def _json_local_timestamp(path: str) -> Convert:
    def convert(value: Value) -> Value:
        try:
            moment = dt.datetime.fromisoformat(value) if type(value) is str else None
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is not None:
            raise _unfit(value, path, "a timestamp without a time zone")
        return moment

    return convert


_OF_JSON: Final[tuple[tuple[type[DataType], Callable[[str], Convert]], ...]] = (
    (StringType, _json_text),
    (DoubleType, _json_number(_DOUBLE_BITS)),
    (FloatType, _json_number(32)),
    (BinaryType, _json_bytes),
    (DateType, _json_date),
    (TimestampType, _json_timestamp),
    (TimestampNTZType, _json_local_timestamp),
)


def _unfit(value: Value, path: str, meant: str) -> TypeError:
    return TypeError(f"{path} is {type(value).__name__} where the schema means {meant}")
