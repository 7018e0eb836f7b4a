"""Adds two numbers exactly: money must not drift, and 0.1 + 0.2 is 0.3."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Clamped, Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow
from typing import Final

from processor.errors import RecordRejected
from processor.record import Value
from processor.values.kinds import DECIMAL_TEXT, exact, is_decimal128, is_number

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
    if not is_number(value) and not (isinstance(value, str) and DECIMAL_TEXT.fullmatch(value)):
        raise RecordRejected("schema_mismatch", f"{value!r:.100} is not a number")


def exact_sum(one: Value, other: Value) -> Value:
    """The exact sum of two numbers, or of two texts that are numbers, for types that write any number, such as JSON.

    Two ints give an int of 64 bits, two Decimals a Decimal, two texts a text without an exponent; a float takes part as
    the number it is written as and gives a float. Where that kind does not hold the sum exactly, it is a Decimal.

    Raises:
        RecordRejected: `schema_mismatch`: no number, a number and a text, or more than 1,000 digits.
    """
    result = _sum(one, other)
    if type(result) is int:
        return _int_or_decimal(result)
    if type(result) is str or (isinstance(one, Decimal) and isinstance(other, Decimal)):
        return result
    if not isinstance(one, float) and not isinstance(other, float) and result.as_tuple().exponent == 0:
        return _int_or_decimal(int(result))
    near = float(result)
    return near if Decimal(repr(near)) == result else result


def exact_sum_in_kind(one: Value, other: Value) -> Value:
    """The sum of two numbers as a value of their own kind, for message types whose numbers have a type each.

    Two ints give an int, and two doubles the double nearest to the exact sum of both as they are written. Of two kinds
    the one with more values wins: an int and a double give a double, and a decimal wins over both. A class of its own,
    such as BSON's Int64, is kept, the first value's before the second's.

    Raises:
        RecordRejected: `schema_mismatch`: as `exact_sum`, or the kind does not hold the sum.
    """
    result = _sum(one, other)
    if type(result) is str:
        return _of_class(str, result, one, other)
    if type(result) is int:
        total_of_class = _of_class(int, result, one, other)
        # A class of its own is signed: Int64 of BSON, or a long in a union of Avro.
        if not _INT_MIN <= result < (_INT_END if type(total_of_class) is int else -_INT_MIN):
            raise _does_not_fit(one, other, "64 bits")
        return total_of_class
    for addend in (one, other):
        if is_decimal128(addend):
            try:
                return type(addend)(result)
            except (ArithmeticError, ValueError):
                raise _does_not_fit(one, other, "the 34 digits of a Decimal128") from None
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return _of_class(Decimal, result, one, other)
    near = float(result)
    if near - near != 0.0:
        raise _does_not_fit(one, other, "a double")
    return _of_class(float, near, one, other)


def _sum(one: Value, other: Value) -> Value:
    """The exact sum: an int of two ints, a text of two texts, else a Decimal."""
    check_addend(one)
    check_addend(other)
    if isinstance(one, str) is not isinstance(other, str):
        raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100}: a text and a number have no sum")
    if isinstance(one, int) and isinstance(other, int):
        return int(one) + int(other)
    try:
        if isinstance(one, str):
            return format(_EXACT.add(Decimal(one), Decimal(other)), "f")
        return _EXACT.add(exact(one), exact(other))
    except DecimalException:
        raise _does_not_fit(one, other, f"{DIGITS_MAX} digits") from None


def _of_class(kind: type, value: Value, one: Value, other: Value) -> Value:
    """A value as one of the class that a message type has for it, if one of the addends has such a class."""
    for addend in (one, other):
        of_class: Value = type(addend)
        if of_class is not kind and issubclass(of_class, kind):
            return of_class(value)
    return value


def _does_not_fit(one: Value, other: Value, room: str) -> RecordRejected:
    return RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100}: their sum does not fit in {room}")


def _int_or_decimal(value: int) -> int | Decimal:
    """An int as messages have it; longer ones are Decimals without an exponent."""
    return value if _INT_MIN <= value < _INT_END else Decimal(value)
