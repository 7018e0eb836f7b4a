"""The merge rule `sum` adds exactly."""

import json
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from bson import Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.codec.avro.schema import marked
from processor.errors import RecordRejected
from processor.merge.builtin_rules import exact_sum, exact_sum_in_kind

INTS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=5)


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (1, 2, 3),
        (2**64 - 1, 1, Decimal(2**64)),
        (-(2**63), -1, Decimal(-(2**63) - 1)),
        (Decimal(2**64), -1, 2**64 - 1),
        (0.1, 0.2, 0.3),
        (1, 0.5, 1.5),
        (0.5, 0.5, 1.0),
        (1e16, 1.0, Decimal("10000000000000001.0")),
        (1e308, 1e308, Decimal("2E+308")),
        (Decimal("1.10"), Decimal("2.20"), Decimal("3.30")),
        (Decimal("0.1000000000000000055"), 1, Decimal("1.1000000000000000055")),
        ("0.10", "0.2", "0.30"),
        ("1", "-1", "0"),
        ("1" + "0" * 30, "1", "1" + "0" * 29 + "1"),
        (Int64(2**62), Int64(2**62), 2**63),
    ],
    ids=repr,
)
def test_a_sum_is_exact_and_keeps_its_kind(one, other, result):
    """A sum has the type of its operands, and is a Decimal where that type cannot hold it."""
    for total in (exact_sum(one, other), exact_sum(other, one)):
        assert (type(total), str(total)) == (type(result), str(result))


@given(INTS | FLOATS | DECIMALS, INTS | FLOATS | DECIMALS)
def test_no_digit_is_lost(one, other):
    """A sum equals that of the numbers as they are written, at any precision of the thread's decimals."""
    with localcontext(prec=3):
        total = exact_sum(one, other)
    assert Fraction(str(total)) == Fraction(str(one)) + Fraction(str(other))


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (1, 2, 3),
        (2**63, 2**63 - 1, 2**64 - 1),
        (0.1, 0.2, 0.3),
        (1, 0.5, 1.5),
        (0.1, Decimal("0.1000000000000000055"), Decimal("0.2000000000000000055")),
        (Decimal("1.10"), 1, Decimal("2.10")),
        (Int64(1), 2, Int64(3)),
        (Int64(1), 0.5, 1.5),
        (Decimal128("1.10"), Decimal128("2.20"), Decimal128("3.30")),
        (Decimal128("1.10"), Int64(1), Decimal128("2.10")),
        (marked(int, 1)(1), 2, marked(int, 1)(3)),
        (marked(float, 1)(0.1), 0.2, marked(float, 1)(0.3)),
        ("0.10", "0.2", "0.30"),
    ],
    ids=repr,
)
def test_a_sum_in_its_own_kind_keeps_type_and_class(one, other, result):
    """In a message type that limits numbers, a sum has the wider of the two types and the class of its operand."""
    for total in (exact_sum_in_kind(one, other), exact_sum_in_kind(other, one)):
        assert (type(total), repr(total)) == (type(result), repr(result))


@settings(derandomize=True)
@given(FLOATS, FLOATS)
def test_a_sum_of_doubles_is_the_nearest_double(one, other):
    """The exact sum of two doubles as they are written is rounded once, to the double nearest to it."""
    try:
        nearest = float(Fraction(repr(one)) + Fraction(repr(other)))
    except OverflowError:
        nearest = None
    if nearest is None:
        with pytest.raises(RecordRejected, match="does not fit in a double"):
            exact_sum_in_kind(one, other)
    else:
        assert exact_sum_in_kind(one, other) == nearest


@pytest.mark.parametrize(
    ("one", "other", "room"),
    [
        (2**63, 2**63, "64 bits"),
        (-(2**63), -1, "64 bits"),
        (Int64(2**62), Int64(2**62), "64 bits"),
        (Decimal128("1E-30"), Decimal128("1E+30"), "the 34 digits of a Decimal128"),
        (Decimal128("9E+6144"), Decimal128("9E+6144"), "the 34 digits of a Decimal128"),
        (1.7e308, 1.7e308, "a double"),
    ],
    ids=repr,
)
def test_a_sum_that_its_kind_does_not_hold_is_rejected(one, other, room):
    """A sum that its type cannot hold is rejected as `schema_mismatch` with both values and the limit.

    It is neither rounded nor written as infinity.
    """
    with pytest.raises(RecordRejected, match=f"schema_mismatch: .*their sum does not fit in {room}"):
        exact_sum_in_kind(one, other)


@given(st.lists(st.integers(-10_000, 10_000), max_size=30))
def test_money_does_not_drift(cents):
    """Amounts with two decimals, added one by one as JSON stores them, give the exact total."""
    amount = 0.0
    for cent in cents:
        amount = json.loads(json.dumps(exact_sum(amount, cent / 100)))
    assert amount == sum(cents) / 100


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        ("a", "1"),
        ("1e5", "1"),
        ("", "1"),
        ("1", 1),
        ([1], 1),
        ({}, 1),
        (b"1", 1),
        (float("nan"), 1.0),
        (float("inf"), 1),
        (Decimal("NaN"), 1),
        (Decimal("sNaN"), 1),
        ("\u0661", "1"),
    ],
    ids=repr,
)
def test_a_sum_of_no_number_is_rejected(one, other):
    """A sum with a value that is no number is rejected as `schema_mismatch`; a text is a number only next to a text."""
    for pair in ((one, other), (other, one)):
        with pytest.raises(RecordRejected) as caught:
            exact_sum(*pair)
        assert caught.value.reason == "schema_mismatch"
        assert repr(one) in caught.value.detail


@pytest.mark.parametrize("huge", [Decimal("1E+999999999999"), Decimal("1E-999999999999"), "0." + "0" * 1000 + "1"])
def test_a_sum_too_long_to_write_is_rejected(huge):
    """A sum of more than 1000 digits is rejected, so two short numbers cannot make a message of gigabytes."""
    with pytest.raises(RecordRejected, match="does not fit in 1000 digits"):
        exact_sum(huge, "1" if type(huge) is str else 1)
