"""Which of two values comes first."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import pytest
from bson import Int64, ObjectId

from processor.errors import RecordRejected
from processor.merge.order import check_order, compare

ORDERED = [
    [float(-(2**70)), Decimal("-1e19"), -1, -0.5, Decimal("-0.1"), 0, 0.1, Decimal("0.1000000000000000055"), 1, 2**63],
    [2**53, 2**53 + 1, float(2**53 + 2), Decimal(2**53 + 3), Int64(2**53 + 4)],
    ["-2", "-1.5", "0", "9", "9.5", "10", "100"],
    ["2024-01-09", "2024-01-10", "2024-02-01"],
    ["", "Z", "a", "ä"],
    [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)],
    [ObjectId("0" * 24), ObjectId("1" * 24)],
    [b"\x00", b"\x00\x00", b"\x01"],
]


@pytest.mark.parametrize("values", ORDERED, ids=str)
def test_values_of_one_kind_have_an_order(values):
    """Numbers by what they are written as, texts of numbers as numbers, other texts and kinds as Python has them."""
    for one, other in pairwise(values):
        assert compare(one, other) < 0
        assert compare(other, one) > 0
        assert compare(one, one) == 0


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (0.1, Decimal("0.1")), (0.0, -0.0), (1, Decimal("1.00")), ("1", "1.0"), ("+5", "05")]
)
def test_the_same_number_written_otherwise_is_neither_before_nor_after(one, other):
    """The float 0.1 is 0.1, as it was written, not the nearest binary fraction."""
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
    ],
    ids=repr,
)
def test_what_has_no_order_is_rejected(one, other):
    """Different kinds, and kinds that have none, are `schema_mismatch`, never an exception of Python's."""
    for pair in ((one, other), (other, one)):
        with pytest.raises(RecordRejected, match=r"schema_mismatch: .* have no order"):
            compare(*pair)


def test_a_value_that_could_meet_none_is_found_before_it_is_stored():
    """`check_order` says at once what a later comparison would."""
    check_order("x")
    with pytest.raises(RecordRejected, match="have no order"):
        check_order(float("nan"))
