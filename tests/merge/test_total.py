"""Exact addition."""

import json
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from bson import Int64
from hypothesis import given
from hypothesis import strategies as st

from processor.errors import RecordRejected
from processor.merge.total import total

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
    """Ints, floats, Decimals and texts give their own kind, and a Decimal where that kind does not hold the sum."""
    for found in (total(one, other), total(other, one)):
        assert (type(found), str(found)) == (type(result), str(result))


@given(INTS | FLOATS | DECIMALS, INTS | FLOATS | DECIMALS)
def test_no_digit_is_lost(one, other):
    """A sum is that of the numbers as they are written, whatever the precision of the thread's decimals."""
    with localcontext(prec=3):
        found = total(one, other)
    assert Fraction(str(found)) == Fraction(str(one)) + Fraction(str(other))


@given(st.lists(st.integers(-10_000, 10_000), max_size=30))
def test_money_does_not_drift(cents):
    """Amounts of two decimals, added one by one as JSON has them, come out to the cent."""
    amount = 0.0
    for cent in cents:
        amount = json.loads(json.dumps(total(amount, cent / 100)))
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
def test_what_is_no_number_is_rejected(one, other):
    """`schema_mismatch` with the value; a text is a number only where both are."""
    for pair in ((one, other), (other, one)):
        with pytest.raises(RecordRejected) as caught:
            total(*pair)
        assert caught.value.reason == "schema_mismatch"
        assert repr(one) in caught.value.detail


@pytest.mark.parametrize("huge", [Decimal("1E+999999999999"), Decimal("1E-999999999999"), "0." + "0" * 1000 + "1"])
def test_a_sum_too_long_to_write_is_rejected(huge):
    """Two short numbers cannot make a message of gigabytes."""
    with pytest.raises(RecordRejected, match="more than 1000 digits"):
        total(huge, "1" if type(huge) is str else 1)
