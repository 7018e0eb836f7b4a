"""Filters handle every kind of value that a codec returns."""

import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import bson
import msgpack
import pytest
from bson.decimal128 import Decimal128

from processor.codec.json_value import to_json_line
from processor.filter import compile_expression, compile_filter

MOMENT = datetime(2024, 2, 29, 12, 30, 15, 500, tzinfo=UTC)

OTHERS = [
    b"\x00\xff",
    b"",
    bytearray(b"ab"),
    MOMENT,
    datetime(2024, 2, 29),  # noqa: DTZ001
    date(2024, 2, 29),
    time(12, 30),
    uuid.UUID(int=7),
    bson.ObjectId("0" * 24),
    Decimal128("1.50"),
    msgpack.Timestamp(1_700_000_000, 5),
    msgpack.Timestamp(1_700_000_000),
    bson.Code("f()"),
    bson.MinKey(),
    timedelta(seconds=5),
]


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_a_value_of_another_kind_is_its_displayed_text(value):
    """A value of a type that filters lack is its displayed text, as `sowstream sow` prints it; an empty one is NULL."""
    text = to_json_line(value).removeprefix('"').removesuffix('"')
    assert compile_filter("/a = /text").matches({"a": value, "text": text}) is bool(text)
    assert compile_expression("CONCAT(/a)").value({"a": value}) == text
    assert compile_filter("/a IS NULL").matches({"a": value}) is not bool(text)


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        (MOMENT, "/a >= '2024-02-29' AND /a < '2024-03'", True),
        (MOMENT, "/a BEGINS WITH ('2024-02-29T12:')", True),
        (MOMENT, "STRPTIME(/a, '%Y-%m-%dT%H:%M:%S.%f%z') = 1709209815.0005", True),
        (b"\x00\xff", "/a = 'AP8='", True),
        (Decimal128("1.50"), "/a = 1.5", True),
        (bson.Int64(5), "/a = 5 AND /a < 5.5 AND /a IN (4, 5) AND /a / 2 = 2", True),
        (Decimal("1E+3"), "/a = 1000 AND /a IN (1000)", True),
        (Decimal("NaN"), "/a IS NAN", True),
        (Decimal("sNaN"), "/a IS NAN AND /a != 1 AND NOT /a < 1", True),
        (Decimal("-Infinity"), "/a < -1E300 AND NOT /a IS NAN", True),
        (float("nan"), "/a IS NAN AND /a != /a AND /a NOT BETWEEN 1 AND 2 AND /a NOT IN (1)", True),
        (float("inf"), "/a > 1 AND /a - /a IS NAN AND ROUND(/a) = /a", True),
        (2**64 - 1, "/a = 18446744073709551615 AND /a != 18446744073709551616.0", True),
        (10**23, "/a = 1e23 AND /a IN (1e23) AND NOT /a > 1e23 AND /a BETWEEN 1e23 AND 1e23", True),
        (1e23, "/a = 100000000000000000000000 AND /a IN (100000000000000000000000)", True),
        (1e23, "/a != 99999999999999991611392 AND /a NOT IN (99999999999999991611392)", True),
        (Decimal(2**70), "/a % 10 = 4 AND /a / 2 * 2 = /a", True),
        ("\ud800", "/a LIKE '.' AND LENGTH(/a) = 1 AND REGEXP_REPLACE(/a, 'x', 'y') = '?'", True),
        ("9" * 100, "/a > 1 AND /a + 1 > 1 AND /a < 1E100", True),
        ("9" * 5000, "/a > 1 AND /a + 1 IS NAN AND LENGTH(/a) = 5000", True),
        (Decimal("9" * 1000), "/a > 1 AND /a + 1 > 1", True),
        (Decimal("9" * 1001), "/a IS NAN", True),
        (Decimal("0." + "7" * 20_000), "/a IS NAN", True),
        ("1e999999999999999999999", "/a > 1", True),
        ("x", "/a[0] = 'x' AND /a[1] IS NULL", True),
    ],
)
def test_a_value_of_another_kind_is_compared(value, text, expected):
    """Times of any type are compared as instants, numbers by value, and no comparison raises."""
    assert compile_filter(text).matches({"a": value}) is expected


def test_an_integer_longer_than_python_writes_is_a_value():
    """An integer longer than Python's limit for texts is compared and searched like any other."""
    assert compile_filter("/a > 1 AND /a LIKE '^10*$' AND /a + 1 > 1e300").matches({"a": 10**5000})
