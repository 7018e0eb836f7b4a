"""Decimals and integers of message types are numbers in a filter, and their times are instants."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest
from bson import DatetimeMS, Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st
from msgpack import Timestamp

from processor.filter import compile_expression, compile_filter
from tests.filter.installed import install

MOMENT = datetime(2024, 2, 29, tzinfo=UTC)
HALF = MOMENT.replace(microsecond=500_000)
SECOND = int(MOMENT.timestamp())
RECORD = {
    "bid": Decimal128("9.5"),
    "ask": Decimal128("10.0"),
    "one": Decimal128("1.0"),
    "same": Decimal128("1.00"),
    "big": Int64(2**53 + 1),
    "near": float(2**53),
    "unsigned": 2**64 - 1,
    "avro": Decimal("9.50"),
    "t": Timestamp(SECOND),
    "u": Timestamp(SECOND, 500_000_000),
    "nano": Timestamp(SECOND, 1),
    "bson": HALF,
    "zoned": MOMENT.astimezone(timezone(timedelta(hours=-5))),
    "local": datetime(2024, 2, 29),  # noqa: DTZ001
    "day": date(2024, 2, 29),
    "far": DatetimeMS(2**60),
    "later": Timestamp(2**60),
    "clock": time(12, 30),
    "noon": time(12, 30, 0, 1),
    "text": "2024-02-29T01:00:00.000+01:00",
    "words": "yesterday",
    "times": [Timestamp(SECOND), "x", Timestamp(2**60)],
}


@pytest.mark.parametrize("text", [
    "/bid < /ask", "/bid BETWEEN 1 AND /ask", "/one = /same", "/one IN (/same, 2)", "/bid IN (/avro)", "/bid = /avro",
    "GREATEST(/bid, /ask) = /ask", "LEAST(/bid, /ask) = 9.5", "/bid + /ask = 19.5", "/ask / 4 = 2.5", "-/bid < 0",
    "/bid * 2 BETWEEN /ask AND 20", "/ask > '9'", "/bid != /ask", "NOT /bid > /ask", "/bid LIKE '^9.5$'",
    "/big > /near", "/big != /near", "/near < /big", "/big - 1 = /near", "/unsigned > 18446744073709551614",
    "/unsigned = 18446744073709551615", "/unsigned IN (18446744073709551615)", "ROUND(/bid) = 10", "SIGN(/bid) = 1",
])  # fmt: skip
def test_numbers_of_message_types_compare_by_value(text):
    """Decimal128, Avro's decimal, 64-bit and unsigned integers act as exact numbers in every operation."""
    assert compile_filter(text).matches(RECORD)


@pytest.mark.parametrize("text", [
    "/t < /u", "/t < /nano AND /nano < /u", "/t = /zoned AND /t = /local AND /t = /day", "/u = /bson", "/t != /u",
    "/bson > '2024-02-29T00:00:00Z'", "/t = '2024-02-29T00:00:00Z'", "/t = '2024-02-29T05:30+05:30'", "/t = /text",
    "/text = /t", "/t = '20240229T000000Z'", "/t = '2024-02-29'", "'2024-02-29' = /t",
    "/bson = '2024-02-29 00:00:00.5'",
    "/bson = '2024-02-29T00:00:00.500000000Z'", "/nano = '2024-02-29T00:00:00.000000001Z'", "/nano > '2024-02-29'",
    "/bson BETWEEN '2024-02-29' AND '2024-02-29T00:00:01'", "/t BETWEEN /day AND /u", "/t IN ('x', '2024-02-29')",
    "/t IN (/text, 1)", "/t NOT IN ('2024-02-28', 1709164800)", "/t < '2024-03'", "/t > '2024'", "/far > /t",
    "/later > '9999-12-31'", "/clock = '12:30' AND /clock < /noon", "GREATEST(/t, /u) = /u", "LEAST(/u, /t) = /t",
    "COALESCE(/nowhere, /t) = '2024-02-29'", "/times = '2024-02-29'", "ARRAY_MIN(/times) = /t",
    "IF(TRUE, /u, 0) > /t", "/t > 99999999999", "/t < 'yesterday'", "/t < /words", "/t != 'yesterday'",
    "/t IS NOT NULL", "NOT /t = 1709164800", "/t + 1 IS NAN", "(/t AND TRUE) IS NULL", "/t BEGINS WITH ('2024-02-29T')",
    "LENGTH(/day) = 10", "/u LIKE '[.]5'",
])  # fmt: skip
def test_times_of_message_types_compare_as_instants(text):
    """Times are compared as instants with fields and with ISO 8601 texts of any precision and zone."""
    assert compile_filter(text).matches(RECORD)


def test_a_plug_in_gets_a_time_as_text(tmp_path, monkeypatch):
    """A third party's function gets a time as text; it only ever gets None, bools, numbers and texts."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert compile_expression("ARGUMENT_TYPE(/t)").value(RECORD) == "str"


def test_an_expression_has_the_time_of_the_record():
    """A function that selects one of a record's times returns the record's own value."""
    assert compile_expression("GREATEST(/t, /u)").value(RECORD) is RECORD["u"]


ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.one_of(
    st.datetimes(datetime(1969, 1, 1), datetime(1971, 1, 1), timezones=ZONES),  # noqa: DTZ001
    st.builds(Timestamp, st.integers(-2, 2), st.sampled_from([0, 1, 500_000_000, 999_999_999])),
    st.integers(-2000, 2000).map(DatetimeMS),
    st.dates(date(1969, 12, 31), date(1970, 1, 2)),
)


def nanos(value):
    """The instant of a time in nanoseconds since 1970, computed by arithmetic alone."""
    if isinstance(value, Timestamp):
        return value.seconds * 10**9 + value.nanoseconds
    if isinstance(value, DatetimeMS):
        return int(value) * 10**6
    if not isinstance(value, datetime):
        return (value.toordinal() - date(1970, 1, 1).toordinal()) * 86_400 * 10**9
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def iso(value, zone, mark):
    """The ISO 8601 text of a time in a zone, with the digits that it needs."""
    whole, rest = divmod(nanos(value), 10**9)
    moment = datetime.fromtimestamp(whole, UTC).astimezone(zone)
    fraction = f"{rest:09d}".rstrip("0")
    offset = moment.strftime("%z")
    return moment.strftime(f"%Y-%m-%d{mark}%H:%M:%S") + (f".{fraction}" if fraction else "") + offset


@settings(max_examples=400, deadline=None, derandomize=True)
@given(TIMES, TIMES, ZONES, st.sampled_from(["T", " "]))
def test_every_comparison_of_times_is_that_of_their_nanoseconds(one, other, zone, mark):
    """Times of any types, as fields and as texts, are compared by their nanoseconds."""
    record = {"a": one, "b": other, "c": iso(other, zone, mark)}
    left, right = nanos(one), nanos(other)
    answers = {"=": left == right, "!=": left != right, "<": left < right, ">=": left >= right}
    for name, answer in answers.items():
        for text in (f"/a {name} /b", f"/a {name} /c", f"/a {name} '{record['c']}'"):
            assert compile_filter(text).matches(record) is answer, text
    assert compile_filter(f"/a IN ('{record['c']}', 'x')").matches(record) is (left == right)


NUMBERS = st.one_of(
    st.sampled_from(["1", "1.0", "1E+3", "1000", "-0", "0.1", "9007199254740993", "1E-6000"]).map(Decimal128),
    st.sampled_from(["1.00", "0.10", "9007199254740993", "1000"]).map(Decimal),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.sampled_from([2**53, 2**53 + 1, 2**64 - 1, 0, 1, 1000, 1.0, 0.1, 1e3, 2.0**53, 1e19]),
)


def fraction(value):
    """The exact fraction of a number as it is written."""
    if isinstance(value, Decimal128):
        return Fraction(value.to_decimal())
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(NUMBERS, NUMBERS)
def test_every_comparison_of_numbers_is_that_of_their_values(one, other):
    """Numbers of any types are compared as the fractions of their spelling."""
    left, right = fraction(one), fraction(other)
    answers = {"=": left == right, "!=": left != right, "<": left < right, ">=": left >= right}
    record = {"a": one, "b": other}
    for name, answer in answers.items():
        assert compile_filter(f"/a {name} /b").matches(record) is answer
    assert compile_filter("/a BETWEEN /b AND /b").matches(record) is (left == right)
    assert compile_filter("/a IN (/b)").matches(record) is (left == right)


@pytest.mark.parametrize("test", ["/x = {}", "/x IN ({})", f"/x IN ({{}}{', 5' * 20})", "{} = /x"])
def test_a_negative_constant_has_all_its_digits(test):
    """A negative number of many digits equals itself alone, also in a long list."""
    exact = Decimal(f"-1.{'1' * 59}2")
    selection = compile_filter(test.format(exact))
    rounded = [Decimal(f"-1.{'1' * digits}") for digits in (27, 49)]
    assert [selection.matches({"x": value}) for value in (exact, *rounded)] == [True, False, False]
