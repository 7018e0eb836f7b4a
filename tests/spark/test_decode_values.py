from __future__ import annotations

import datetime as dt
import math
import time
import uuid
from decimal import Decimal

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from processor.codec.avro.schema import marked
from processor.errors import ConfigurationError
from spark_integration.foundation.arrow_records import arrow_type, column_at_once
from spark_integration.read.values import compile_struct

UTC = dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)
LOCAL = dt.datetime(2024, 2, 29, 12, 30)  # noqa: DTZ001
LARGE = Decimal("-999999999999999999999999999999999999.99")
POINT = StructType([StructField("x", IntegerType())])


def struct(data_type):
    """One column `v`."""
    return StructType([StructField("v", data_type)])


@pytest.mark.parametrize(
    ("data_type", "value", "read"),
    [
        (StringType(), "é", "é"),
        (StringType(), uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (StringType(), dt.time(1, 2, 3, 4), "01:02:03.000004"),
        (StringType(), marked(str, 1)("s"), "s"),
        (BooleanType(), True, True),
        (LongType(), -(2**63), -(2**63)),
        (LongType(), marked(int, 1)(5), 5),
        (FloatType(), 0.5, 0.5),
        (FloatType(), float("-inf"), float("-inf")),
        (DoubleType(), 0.1, 0.1),
        (DoubleType(), 3, 3.0),
        (DecimalType(38, 2), LARGE, LARGE),
        (DecimalType(5, 2), marked(Decimal, 1)("1.1"), Decimal("1.10")),
        (DecimalType(5, 2), 7, Decimal("7.00")),
        (BinaryType(), b"\0\xff", b"\0\xff"),
        (DateType(), dt.date(1, 1, 1), dt.date(1, 1, 1)),
        (TimestampType(), UTC, UTC),
        (TimestampType(), LOCAL, UTC),
        (TimestampNTZType(), LOCAL, LOCAL),
        (ArrayType(LongType()), [1, None], [1, None]),
        (MapType(StringType(), LongType()), {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (POINT, marked(dict, 1)(x=1, y=2), {"x": 1}),
        (POINT, {}, {"x": None}),
        (POINT, None, None),
    ],
)
def test_a_value_is_itself_in_its_column(data_type, value, read) -> None:
    """A value of its column's type is unchanged, also a branch of a union; a UUID and a time of day become text."""
    column = pa.array([compile_struct(struct(data_type))({"v": value})], arrow_type(struct(data_type)))
    assert column.to_pylist() == [{"v": read}]


@pytest.mark.parametrize(
    ("data_type", "value", "said"),
    [
        (StringType(), 1, "/v is int where the schema means text"),
        (StringType(), b"x", "/v is bytes where"),
        (BooleanType(), 1, "/v is int where the schema means a boolean"),
        (LongType(), True, "/v is bool where the schema means an integer"),
        (LongType(), 1.0, "/v is float where"),
        (DoubleType(), True, "/v is bool where the schema means a number"),
        (FloatType(), 0.1, "/v is 0.1, which a float would round; make the column DOUBLE"),
        (DecimalType(5, 2), 1.5, "/v is float where the schema means a decimal"),
        (BinaryType(), "x", "/v is str where the schema means bytes"),
        (DateType(), UTC, "/v is datetime where the schema means a date"),
        (TimestampType(), 5, "/v is int where the schema means a timestamp"),
        (TimestampNTZType(), UTC, "/v is datetime where the schema means a timestamp without a time zone"),
        (ArrayType(StringType()), "abc", "/v is str where the schema means an array"),
        (MapType(StringType(), LongType()), {"a": "x"}, "/v is str where the schema means an integer"),
        (POINT, [("x", 1)], "/v is list where the schema means an object"),
        (StructType([StructField("w", POINT)]), {"w": {"x": "1"}}, "/v/w/x is str where"),
    ],
)
def test_a_value_of_another_type_is_refused(data_type, value, said) -> None:
    """A value of another type than its column is an error with the path and the type; nothing is guessed."""
    with pytest.raises(TypeError, match=said):
        compile_struct(struct(data_type))({"v": value})


POINTS = ArrayType(StructType([StructField("x", IntegerType()), StructField("names", ArrayType(StringType()))]))


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (LongType(), [None, -(2**63), 2**63 - 1, 0]),
        (ByteType(), [127, -128, None]),
        (StringType(), ["", None, "é\0", "\U0001f600"]),
        (BooleanType(), [True, None, False]),
        (DoubleType(), [0.1, 3, None, -0.0, 2**53, 5e-324]),
        (POINT, [{"x": 1, "y": 2}, {}, None, {"x": None}]),
        (ArrayType(LongType()), [[], [1, None], None, [2]]),
        (ArrayType(ArrayType(DoubleType())), [None, [None, []], [], [[0.5, None], [1]]]),
        (POINTS, [[{"x": 1, "names": ["a", None]}, None, {}], None, [], [{"names": None}, {"names": []}]]),
        (StringType(), [None, None]),
        (POINTS, []),
    ],
)
@pytest.mark.parametrize("of_json", [True, False])
def test_a_column_at_once_is_that_of_its_values_one_by_one(data_type, values, of_json) -> None:
    """Values of one Python type make the same column whether they are converted together or each by itself."""
    kind = arrow_type(struct(data_type))
    records = [None, *({"v": value} for value in values), {}, None]
    column = column_at_once(records, kind)
    convert = compile_struct(struct(data_type), of_json=of_json)
    assert column is not None
    column.validate(full=True)
    assert column.equals(pa.array([None if record is None else convert(record) for record in records], kind))


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (LongType(), [1, True]),
        (LongType(), [1, 1.0]),
        (LongType(), [2**63]),
        (LongType(), [marked(int, 1)(5)]),
        (ByteType(), [1, 128]),
        (StringType(), ["a", 7]),
        (StringType(), ["a", "\ud800"]),
        (StringType(), [marked(str, 1)("s")]),
        (BooleanType(), [True, 1]),
        (DoubleType(), [0.5, math.inf]),
        (DoubleType(), [math.nan]),
        (DoubleType(), [0.5, 2**53 + 1]),
        (DoubleType(), [0.5, Decimal("0.5")]),
        (FloatType(), [0.5]),
        (TimestampType(), [UTC]),
        (MapType(StringType(), LongType()), [{"a": 1}]),
        (POINT, [{"x": 1}, [("x", 1)]]),
        (POINT, [{"x": 1}, {"x": "1"}]),
        (POINT, [marked(dict, 1)(x=1)]),
        (ArrayType(StringType()), [["a"], "abc"]),
        (ArrayType(StringType()), [["a"], ("b",)]),
        (POINTS, [[{"x": 1}], [{"names": [7]}]]),
    ],
)
def test_values_to_look_at_make_no_column_at_once(data_type, values) -> None:
    """Values of several types, or beyond the range of their column, are left to the conversion of each by itself."""
    assert column_at_once([{"v": value} for value in values], arrow_type(struct(data_type))) is None


def test_a_decimal_of_json_may_be_a_float() -> None:
    """JSON has one kind of number, so a float fills a column of decimals, at any depth, with the digits written."""
    prices = ArrayType(MapType(StringType(), StructType([StructField("w", DecimalType(12, 2))])))
    value = {"v": [{"a": {"w": 0.1}, "b": {"w": 3}, "c": {"w": Decimal("10.25")}}]}
    members = [("a", {"w": Decimal("0.1")}), ("b", {"w": Decimal(3)}), ("c", {"w": Decimal("10.25")})]
    assert compile_struct(struct(prices), of_json=True)(value) == {"v": [members]}
    with pytest.raises(TypeError, match="/v/w is float where the schema means a decimal"):
        compile_struct(struct(prices))(value)


def test_a_record_that_is_no_object_is_refused() -> None:
    """A record that is no object is refused, as it has no fields."""
    with pytest.raises(TypeError, match="the record is bytes where the schema means an object"):
        compile_struct(struct(LongType()))(b"x")


@pytest.mark.parametrize("data_type", [CalendarIntervalType(), MapType(LongType(), LongType())])
def test_a_column_that_no_message_type_fills_is_refused(data_type) -> None:
    """A column of a type without values in any message type is refused before anything is read."""
    with pytest.raises(ConfigurationError, match=r"schema: /v/w is .*, and no message type has such values"):
        compile_struct(struct(StructType([StructField("w", data_type)])))


@pytest.mark.parametrize("text", ["1" * 1_000_000 + "x", "1." + "1" * 1_000_000 + "x", "1e" + "1" * 1_000_000 + "x"])
def test_no_text_in_a_column_of_decimals_takes_long(text):
    """A text of a megabyte that is no decimal is refused in a time that grows with its length."""
    convert = compile_struct(struct(DecimalType(10, 2)), of_json=True)
    began_s = time.process_time()
    with pytest.raises(TypeError, match="/v is a text where the schema means a decimal"):
        convert({"v": text})
    assert time.process_time() - began_s < 15
