"""Adds two numbers exactly: money must not drift, and 0.1 + 0.2 is 0.3."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Clamped, Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow
from typing import Final

from processor.errors import RecordRejected
from processor.merge.order import DECIMAL_TEXT, exact, is_number
from processor.record import Value

DIGITS_MAX: Final = 1000
"""Longest sum. Any two doubles have a shorter one; 1E+1000000 + 1 would be a megabyte of digits."""

_EXACT: Final = Context(
    prec=DIGITS_MAX, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Clamped, Inexact, InvalidOperation, Overflow]
)
_INT_MIN: Final = -(2**63)
_INT_END: Final = 2**64


def check_addend(value: Value) -> None:
    """Make sure that a value can be added to.

    Raises:
        RecordRejected: `schema_mismatch`: neither a finite number nor a text of one.
    """
    if not is_number(value) and not (type(value) is str and DECIMAL_TEXT.fullmatch(value)):
        raise RecordRejected("schema_mismatch", f"{value!r:.100} is not a number")


def total(one: Value, other: Value) -> Value:
    """The exact sum of two numbers, or of two texts that are numbers, as FIX, NVFIX and XML have them.

    Two ints give an int of 64 bits, two Decimals a Decimal, two texts a text without an exponent; a float takes part as
    the number it is written as and gives a float. Where that kind does not hold the sum exactly, it is a Decimal.

    Raises:
        RecordRejected: `schema_mismatch`: no number, a number and a text, or more than 1,000 digits.
    """
    check_addend(one)
    check_addend(other)
    if (type(one) is str) is not (type(other) is str):
        raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100}: a text and a number have no sum")
    if isinstance(one, int) and isinstance(other, int):
        return _int_or_decimal(int(one) + int(other))
    try:
        if type(one) is str:
            return format(_EXACT.add(Decimal(one), Decimal(other)), "f")
        result = _EXACT.add(exact(one), exact(other))
    except DecimalException:
        raise RecordRejected(
            "schema_mismatch", f"{one!r:.100} and {other!r:.100}: their sum has more than {DIGITS_MAX} digits"
        ) from None
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return result
    if not isinstance(one, float) and not isinstance(other, float) and result.as_tuple().exponent == 0:
        return _int_or_decimal(int(result))
    near = float(result)
    return near if Decimal(repr(near)) == result else result


def _int_or_decimal(value: int) -> int | Decimal:
    """An int as messages have it; longer ones are Decimals without an exponent."""
    return value if _INT_MIN <= value < _INT_END else Decimal(value)
