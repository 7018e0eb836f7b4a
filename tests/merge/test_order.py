"""Values of one kind have an order; other pairs are rejected."""

from datetime import UTC, datetime, time
from decimal import Decimal
from itertools import pairwise

import msgpack
import pytest
from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from processor.codec.avro.branch import marked
from processor.errors import RecordRejected
from processor.merge.order import check_order, compare

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
