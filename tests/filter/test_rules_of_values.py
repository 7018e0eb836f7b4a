"""Rules 5 to 8: numbers and texts, arithmetic, arrays and regular expressions, each as a table of results."""

import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import bson
import msgpack
import pytest
from bson.decimal128 import Decimal128

from processor.codec.json_value import to_json_line
from processor.errors import FilterError
from processor.filter import compile_expression, compile_filter
from tests.filter.record import matches, value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 = 2.0", True),
        ("'2.000' = '2.0'", False),
        ("10 < '2'", False),
        ("10 < 'abc'", True),
        ("10 = '10'", True),
        ("10 = '10.0'", True),
        ("10 = '1e1'", True),
        ("-5 = '-5'", True),
        ("5 = '+5'", True),
        ("0.5 = '.5'", True),
        ("10 = ' 10'", False),
        ("10 = '1_0'", False),
        ("1e400 = '1e500'", False),
        ("1e400 < '1e500'", True),
        ("1e-400 > 0", True),
        ("'1e3' / 7 = 1000.0 / 7", True),
        ("3 = '٣'", False),
        ("3 < '٣'", True),
        ("10 != 'abc'", True),
        ("10 > 'abc'", False),
        ("'abc' > 10", True),
        ("'abc' >= 1e300", True),
        ("1 < 'inf'", True),
        ("1 < 'nan'", True),
        ("'10' < '9'", True),
        ("'b' > 'a'", True),
        ("'A' = 'a'", False),
        ("/digits = 10", True),
        ("/digits < 9", False),
        ("/digits < '9'", True),
        ("/decimal = 0.1", True),
        ("/decimal = '0.1'", True),
        ("/decimal < 0.10000000000000000001", True),
        ("0.1 = 0.10000000000000000001", False),
        ("9007199254740993 = 9007199254740992.0", False),
        ("123456789012345678901234567890 > 123456789012345678901234567889", True),
        ("/yes = TRUE", True),
        ("/yes = 1", True),
        ("/no = 0", True),
        ("/yes = 'true'", False),
        ("1 / 0 = 1 / 0", False),
        ("1 / 0 != 1", True),
        ("1 / 0 < 1", False),
        ("/decimal < 1 / 0", False),
        ("/decimal < EXP(1000)", True),
        ("7 BETWEEN 7 AND 7", True),
        ("'7' BETWEEN 6 AND '8'", True),
        ("'b' BETWEEN 'a' AND 'c'", True),
        ("/id NOT BETWEEN 8 AND 9", True),
        ("2 IN ('2.0', 5)", True),
        ("'2' IN ('2.0', 5)", False),
        ("'2' IN (2.0, 5)", True),
        ("/decimal IN (0.1)", True),
        ("0.1 IN (/decimal)", True),
        ("/digits IN (/qty)", True),
        ("/yes IN (1)", True),
    ],
)  # fmt: skip
def test_rule_5_numbers_and_texts(text, expected):
    """A number and a numeric text are compared as exact numbers; other texts are greater than any number."""
    assert matches(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 5", 0),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("7.0 / 2", 3.5),
        ("7 / 2.0", 3.5),
        ("1 / 5.0", 0.2),
        ("-5 % 3", -2),
        ("5 % -3", 2),
        ("5 MOD 3", 2),
        ("5 mod -3", 2),
        ("-5.5 % 3", -2.5),
        ("'7' / '2'", 3),
        ("'7.0' / 2", 3.5),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 2 - 3", 5),
        ("100 / 10 / 2", 5),
        ("- /qty", -10),
        ("-(-(3))", 3),
        ("- /decimal", Decimal("-0.1")),
        ("TRUE + TRUE", 2),
        ("/decimal + 0.2", 0.1 + 0.2),
        ("/decimal + /decimal", Decimal("0.2")),
        ("/decimal * 10 / 3", Decimal(1) / 3),
        ("/decimal % 3", Decimal("0.1")),
        ("/missing + 1", None),
        ("1 - /nothing", None),
        ("- /empty", None),
        ("/object * 2", None),
        ("9223372036854775807 + 1", 2**63),
    ],
)  # fmt: skip
def test_rule_6_arithmetic(text, expected):
    """Integer arithmetic truncates towards 0, a float makes the result a float, `%` has the sign of its left side.

    NULL in an operand makes the result NULL.
    """
    result = value(text)
    if isinstance(expected, Decimal):
        assert abs(result - expected) < Decimal("1e-20")
    else:
        assert result == expected
        assert type(result) is type(expected)


@pytest.mark.parametrize(
    "text", ["'abc' + 1", "1 * 'x'", "- /name", "1 / 0", "1.0 / 0", "5 % 0", "5.0 % 0", "/decimal / 0"]
)
def test_rule_6_arithmetic_without_numbers_is_nan(text):
    """Arithmetic with a text that is no number, and division by 0, are NAN."""
    assert matches(f"{text} IS NAN")
    assert not matches(f"{text} IS NOT NAN")
    assert matches(f"{text} + 1 IS NAN")


def test_rule_6_a_text_is_no_nan_by_itself():
    """A text is NAN only as a result of arithmetic."""
    assert matches("/name IS NOT NAN")
    assert matches("/name + 0 IS NAN")


def test_rule_6_integers_that_grow_become_floats():
    """Integers of more than forty digits become floats, so no operation takes unbounded time."""
    record = {"a": 10**30}
    assert value("/a * 10", record) == 10**31
    assert type(value("/a * /a", record)) is float
    assert value(" * ".join(["/a"] * 50), record) == float("inf")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/tags = 'x'", True),
        ("/tags = 'z'", False),
        ("/tags != 'z'", True),
        ("/tags != 'x'", True),
        ("NOT /tags = 'x'", False),
        ("/numbers > 2", True),
        ("/numbers > 3", False),
        ("2 < /numbers", True),
        ("/numbers = /matrix", True),
        ("/numbers BETWEEN 2.5 AND 9", True),
        ("/numbers BETWEEN 1.2 AND 1.8", False),
        ("2 BETWEEN /numbers AND /numbers", True),
        ("/tags IN ('y', 'q')", True),
        ("/tags NOT IN ('y', 'q')", False),
        ("/tags NOT IN ('p', 'q')", True),
        ("'y' IN (/tags)", True),
        ("/tags LIKE '^Y'", False),
        ("/tags LIKE '(?i)^Y'", True),
        ("/tags BEGINS WITH ('y')", True),
        ("/tags ENDS WITH ('q')", False),
        ("/matrix = 3", True),
        ("/nulls != 'x'", False),
        ("UPPER(/tags) = 'X'", True),
        ("UPPER(/tags) = 'Y'", False),
        ("/numbers + 1 = 4", True),
        ("/numbers + 1 = 2", False),
        ("/tags[1] = 'y'", True),
        ("/tags[0] = 'y'", False),
        ("/tags[2] IS NULL", True),
        ("/id[0] = 7", True),
        ("/id[1] IS NULL", True),
        ("/matrix[0] = 2", True),
        ("/matrix[0][1] = 2", True),
        ("/legs/px = 6", True),
        ("/legs/px = 8", True),
        ("/legs/px = 9", False),
        ("/legs/ccy = 'USD'", True),
        ("/legs/px[1] = 6", True),
        ("/legs[1]/px = 6", True),
        ("/legs[2]/px IS NULL", True),
        ("/legs/none IS NULL", True),
        ("/legs IS NULL", True),
        ("ARRAY_COUNT(/legs/px) = 4", True),
        ("ABS(/legs/px) = 5", True),
    ],
)  # fmt: skip
def test_rule_7_arrays(text, expected):
    """A comparison applies to any element, a function to element 0; a path flattens objects in arrays."""
    assert matches(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/name LIKE 'b'", True),
        ("/name LIKE 'B'", False),
        ("/name LIKE '(?i)B'", True),
        ("/name LIKE '^b'", False),
        ("/name LIKE '^ab'", True),
        ("/name LIKE 'bc$'", True),
        ("/name LIKE '^abc$'", True),
        ("/name LIKE '^ab$'", False),
        ("/name LIKE 'a.c'", True),
        ("/name LIKE r'\\w{3}'", True),
        ("/name LIKE '\\w{3}'", True),
        ("/name LIKE '\\\\w{4}'", False),
        ("/name LIKE '[x-z]|c'", True),
        ("/name NOT LIKE 'z'", True),
        ("/qty LIKE '^1'", True),
        ("/px LIKE r'^1\\.5$'", True),
        ("/yes LIKE 'true'", True),
        ("INSTR(/name, 'b') != 0", True),
    ],
)  # fmt: skip
def test_rule_8_like(text, expected):
    """`LIKE` is an unanchored, case-sensitive search by a regular expression; a number is searched as its text."""
    assert matches(text) is expected


def test_rule_8_a_dollar_is_the_end_of_the_text():
    """A dollar is the end of the text, also before a final line break, with and without the engine."""
    for pattern in ("b$", "[b]$"):
        assert not matches(f"/a LIKE '{pattern}'", {"a": "ab\n"})
        assert matches(f"/a LIKE '{pattern}'", {"a": "ab"})


def test_rule_8_the_pattern_is_a_literal():
    """A pattern is a literal text and neither a path nor a function, so it is compiled once."""
    for text in ("/name LIKE /tags", "/name LIKE UPPER('x')", "/name LIKE 5"):
        with pytest.raises(FilterError, match="expected a text in quotes"):
            compile_filter(text)


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
