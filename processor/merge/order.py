"""Which of two values comes first: for sequence groups, `min` and `max`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from processor.errors import RecordRejected
from processor.record import Value

DECIMAL_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)
"""A number as FIX, NVFIX and XML have it: a text. Exponents are none of theirs."""

_WITHOUT: Final = (bool, dict, list, type(None))
"""Kinds without an order, though Python has one for some."""


def is_number(value: Value) -> bool:
    """Whether a value is a finite number: an int, a float or a Decimal; a bool is none."""
    kind = type(value)
    if kind is int:
        return True
    if isinstance(value, float):
        return value - value == 0.0  # Neither infinite nor NaN.
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) and kind is not bool


def exact(value: Value) -> Decimal:
    """A number as it is written: the float 0.1 is 0.1, not the nearest binary fraction to it."""
    return value if isinstance(value, Decimal) else Decimal(repr(float(value)) if isinstance(value, float) else value)


def check_order(value: Value) -> None:
    """Make sure that a value can be compared with another one of its kind.

    Raises:
        RecordRejected: `schema_mismatch`: a boolean, an object, an array, NaN, an infinite number or null.
    """
    compare(value, value)


def compare(one: Value, other: Value) -> int:
    """Negative if `one` comes before `other`, 0 if neither does, positive if it comes after.

    Numbers compare by the value they are written with, whatever their types. Two texts that are both decimal numbers
    compare as numbers, so that the `9` of a FIX message comes before its `10`; other texts by their characters. Other
    kinds, such as times, compare within their type.

    Raises:
        RecordRejected: `schema_mismatch`: of different kinds, or of one without an order.
    """
    kind = type(one)
    if is_number(one) and is_number(other):
        if kind is not type(other):
            one, other = exact(one), exact(other)
    elif kind is not type(other) or kind in _WITHOUT or isinstance(one, int | float | Decimal):
        raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100} have no order")
    elif kind is str and DECIMAL_TEXT.fullmatch(one) and DECIMAL_TEXT.fullmatch(other):
        one, other = Decimal(one), Decimal(other)
    try:
        return -1 if one < other else int(one > other)
    except TypeError as error:
        raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100} have no order: {error}") from None
