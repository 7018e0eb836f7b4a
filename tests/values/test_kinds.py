"""Values of every message type are compared strictly, and values of one kind have an order."""

import json
from copy import deepcopy
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from uuid import UUID

import bson
import msgpack
import pytest
from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given

from processor.codec.avro.schema import marked
from processor.errors import RecordRejected
from processor.merge import MergePolicy, apply_delta, diff, insert, merge, strictly_equal, touch
from processor.merge.builtin_rules import union
from processor.values.kinds import check_order, compare
from tests.merge.test_law import PROVED, TWO_VALUES, written

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)

# Within a line every value differs from every other, though to Python some are equal.
FOREIGN = [
    [b"", b"1", b"\x00", "", "1", bytearray(b"1")],
    [NOON, NOON.replace(tzinfo=None), NOON.astimezone(timezone(timedelta(hours=2))), NOON + timedelta(microseconds=1)],
    [date(2024, 5, 1), datetime(2024, 5, 1), datetime(2024, 5, 1, fold=1)],  # noqa: DTZ001
    [time(12), time(12, tzinfo=UTC), timedelta(hours=12)],
    [UUID(int=1), UUID(int=2), str(UUID(int=1)), UUID(int=1).bytes],
    [bson.ObjectId("0" * 24), bson.ObjectId("1" * 24), "0" * 24],
    [bson.Int64(1), 1, 1.0, True, Decimal(1), "1"],
    [bson.Binary(b"1", 0), bson.Binary(b"1", 5), b"1"],
    [bson.Decimal128("1"), bson.Decimal128("1.0"), Decimal(1)],
    [bson.Timestamp(1, 1), bson.Timestamp(1, 2)],
    [bson.Regex("a"), bson.Regex("a", "i"), "a"],
    [msgpack.ExtType(1, b"x"), msgpack.ExtType(2, b"x"), (1, b"x")],
    [msgpack.Timestamp(1, 0), msgpack.Timestamp(1, 1)],
    [Decimal("1.0"), Decimal("1.00"), Decimal("0.0"), Decimal("-0.0"), Decimal("Infinity")],
    [float("inf"), float("-inf"), 0.0, -0.0],
]
PAIRS = [(one, other) for line in FOREIGN for one in line for other in line if one is not other]
EACH = [value for line in FOREIGN for value in line]


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"p": [v]}], ids=["bare", "array", "object"])
def test_values_that_are_written_differently_are_different(wrap):
    """Values that are written differently are different at any depth: type, zone, subtype and trailing zeros count."""
    for one, other in PAIRS:
        assert not strictly_equal(wrap(one), wrap(other))
        change = merge({"a": wrap(one)}, {"a": wrap(other)}, MergePolicy())
        assert repr(change.delta) == repr({"a": wrap(other)})
        assert repr(diff({"a": wrap(one)}, {"a": wrap(other)}).delta) == repr({"a": wrap(other)})
        assert len(union([wrap(one)], [wrap(other)])) == 2


@pytest.mark.parametrize("value", EACH, ids=repr)
def test_a_value_and_its_copy_are_the_same(value):
    """A value equals its copy and passes unchanged through merge, diff and replay."""
    assert strictly_equal([value], [deepcopy(value)])
    assert merge({"a": value}, {"a": deepcopy(value)}, MergePolicy()).delta == {}
    assert diff({"a": value}, {"a": deepcopy(value)}).delta == {}
    assert union([value], [deepcopy(value)]) == [value]
    change = insert({"o": {"a": value}}, MergePolicy())
    [replayed] = apply_delta(None, change.delta)["o"].values()
    assert replayed is value


@PROVED
@given(TWO_VALUES)
def test_two_values_are_the_same_exactly_if_they_are_written_alike(values):
    """Values are strictly equal exactly if their texts are; the order of members counts in arrays only."""
    one, other = values
    assert strictly_equal(one, other) == strictly_equal(other, one) == (written(one) == written(other))
    sorted_texts = {json.dumps(value, sort_keys=True, default=repr) for value in values}
    assert len(union([one], [other])) == len(sorted_texts)


NANS = [
    lambda: float("nan"),
    lambda: Decimal("NaN"),
    lambda: Decimal("sNaN"),
    lambda: bson.Decimal128("NaN"),
    lambda: marked(float, 1)("nan"),
    lambda: marked(dict, 1)(x=float("nan")),
]


@pytest.mark.parametrize("nan", NANS, ids=lambda make: repr(make()))
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: [v], lambda v: {"p": [{"q": v}]}], ids=["bare", "array", "deep"]
)
@pytest.mark.parametrize("policy", [MergePolicy(), MergePolicy("set", 1)], ids=str)
def test_a_repeated_nan_is_no_change(nan, wrap, policy):
    """NaN equals NaN of its own kind in a merge, a diff and a conflated interval, at any depth."""
    assert strictly_equal(wrap(nan()), wrap(nan()))
    assert merge({"a": wrap(nan())}, {"a": wrap(nan())}, policy).delta == {}
    assert diff({"a": wrap(nan())}, {"a": wrap(nan())}).delta == {}
    touched = {}
    touch(touched, {"a": wrap(nan())}, [{"a": wrap(nan())}, {"a": wrap(nan())}])
    assert touched == {}
    assert list(merge({"a": wrap(1.5)}, {"a": wrap(nan())}, policy).delta) == ["a"]
    assert list(merge({"a": wrap(nan())}, {"a": wrap(1.5)}, policy).delta) == ["a"]


def test_comparing_never_raises():
    """Comparing never raises, not even for a signalling NaN, which Python cannot compare."""
    assert not strictly_equal(Decimal("sNaN"), Decimal(1))
    assert strictly_equal([Decimal("sNaN")], [Decimal("sNaN")])


def test_deeply_nested_arrays_are_compared_in_one_pass():
    """Deeply nested arrays are compared in one pass: the work does not double with each level."""

    def nested():
        value = float("nan")
        for _ in range(200):
            value = [1, value]
        return value

    assert strictly_equal(nested(), nested())
    assert not strictly_equal(nested(), [2, nested()])


ORDERED = [
    [float(-(2**70)), Decimal("-1e19"), -1, -0.5, Decimal("-0.1"), 0, 0.1, Decimal("0.1000000000000000055"), 1, 2**63],
    [2**53, 2**53 + 1, float(2**53 + 2), Decimal(2**53 + 3), Int64(2**53 + 4)],
    ["-2", "-1.5", "0", "9", "9.5", "10", "100"],
    ["2024-01-09", "2024-01-10", "2024-02-01"],
    ["", "Z", "a", "ä"],
    ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.000000001Z", "2024-01-01T00:00:00.5Z", "2024-01-01T00:00:01Z"],
    ["2024-01-01T10:00:00+02:00", "2024-01-01T09:00:00Z", "2024-01-01 05:00:00-04:30", "2024-01-01T10:00:00"],
    ["10:00+02:00", "09:00Z"],
    ["2024-01-01", "2024-01-01T00:00:01", "2024-01-01T00:00:02Z or so"],
    ["09:00Z", "2024-01-01"],
    [Decimal128("-1"), 0, Decimal128("0.10"), 0.2, Int64(1), Decimal128("1E+3"), Decimal("1000.5")],
    [msgpack.Timestamp(-1, 9), msgpack.Timestamp(0, 0), msgpack.Timestamp(0, 1), msgpack.Timestamp(2**40, 0)],
    [DatetimeMS(-(2**60)), datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00.0001Z", DatetimeMS(2**60)],
    [marked(str, 1)("a"), "b", marked(str, 2)("c")],
    [time(9), time(9, 0, 0, 1)],
    [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)],
    [ObjectId("0" * 24), ObjectId("1" * 24)],
    [b"\x00", b"\x00\x00", b"\x01"],
]


@pytest.mark.parametrize("values", ORDERED, ids=str)
def test_values_of_one_kind_have_an_order(values):
    """Values of a kind are ordered: numbers by their written value, times as instants, texts by characters."""
    for one, other in pairwise(values):
        assert compare(one, other) < 0
        assert compare(other, one) > 0
        assert compare(one, one) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.1, Decimal("0.1")),
        (0.0, -0.0),
        (1, Decimal("1.00")),
        ("1", "1.0"),
        ("+5", "05"),
        (Decimal128("1.0"), Decimal128("1.00")),
        (Decimal128("1"), 1.0),
        ("2024-01-01T00:00:00Z", "2024-01-01T02:00+02:00"),
        (DatetimeMS(0), "1970-01-01"),
        (msgpack.Timestamp(0, 0), datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_one_number_or_instant_in_two_forms_is_neither_before_nor_after(one, other):
    """Equal numbers or instants of different types compare as equal, times in any zone."""
    assert compare(one, other) == compare(other, one) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, True),
        (True, False),
        (None, 1),
        ([1], [2]),
        ({}, {}),
        (float("nan"), 1.0),
        (1, float("inf")),
        (Decimal("sNaN"), 1),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),  # noqa: DTZ001
        (1j, 2j),
        (Decimal128("NaN"), Decimal128("1")),
        (Decimal128("NaN"), Decimal128("NaN")),
        (Decimal128("Infinity"), 1),
        (msgpack.Timestamp(0, 0), 0),
        (datetime(2024, 1, 1, tzinfo=UTC), "10:00Z"),
        (marked(dict, 1)(), marked(dict, 1)()),
    ],
    ids=repr,
)
def test_values_without_an_order_are_rejected(one, other):
    """Two values without an order are rejected as `schema_mismatch`, never with an exception of Python's."""
    for pair in ((one, other), (other, one)):
        with pytest.raises(RecordRejected, match=r"schema_mismatch: .* have no order"):
            compare(*pair)


def test_a_value_without_an_order_is_rejected_before_it_is_stored():
    """`check_order` rejects a value that cannot be compared before it is stored."""
    check_order("x")
    with pytest.raises(RecordRejected, match="have no order"):
        check_order(float("nan"))
