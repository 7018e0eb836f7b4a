"""Functions of numbers. A text that is no number is NAN; what has no result, such as the root of -1, is NAN."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Final

from processor.filter.arithmetic import negative, operand
from processor.filter.compare import comparison
from processor.filter.function import Function
from processor.filter.syntax_tree import Scalar
from processor.filter.value import NAN, Number, is_finite, is_nan, scalar

_EXACT: Final = Context(prec=1000, traps=[])
"""Holds any double with all its digits."""
_PLACES_MAX: Final = 400
"""No double has digits further from its point."""
_LESS: Final = comparison("<")


def coalesce(*values: Scalar) -> Scalar:
    """The first value that is not NULL."""
    return next((value for value in values if value is not None), None)


def absolute(value: Scalar) -> Number | None:
    """Without its sign."""
    number = operand(value)
    return negative(number) if number is not None and number < 0 else number


def rounded(value: Scalar, places: Scalar = 0) -> Number | None:
    """To the nearest number of so many places, a half away from 0; without places, or with 0, an integer."""
    count = operand(places)
    if count is None or not is_finite(count):
        return None
    return _rounded(value, int(max(-_PLACES_MAX, min(_PLACES_MAX, count))), ROUND_HALF_UP)


def floor(value: Scalar) -> Number | None:
    """The next integer below."""
    return _rounded(value, 0, ROUND_FLOOR)


def ceiling(value: Scalar) -> Number | None:
    """The next integer above."""
    return _rounded(value, 0, ROUND_CEILING)


def greatest(*values: Scalar) -> Scalar:
    """The greatest, as comparisons have it."""
    best = values[0]
    for value in values[1:]:
        if _LESS(best, value):
            best = value
    return best


def least(*values: Scalar) -> Scalar:
    """The least, as comparisons have it."""
    best = values[0]
    for value in values[1:]:
        if _LESS(value, best):
            best = value
    return best


def power(base: Scalar, exponent: Scalar) -> float:
    """A number to the power of another."""
    return _of_floats(math.pow)(base, exponent)


def sign(value: Scalar) -> Number | None:
    """1 above 0, -1 below, 0 for 0."""
    number = operand(value)
    if number is None or is_nan(number):
        return number
    return (number > 0) - (number < 0)


def _of_floats(function: Callable[..., float]) -> Callable[..., float]:
    """One of Python's functions, with NAN and infinity for the cases that it refuses."""

    def call(*values: Scalar) -> float:
        try:
            return function(*(float(operand(value) or 0) for value in values))
        except OverflowError:
            return math.inf
        except ValueError:
            return NAN

    call.__doc__ = function.__doc__
    return call


def _rounded(value: Scalar, places: int, way: str) -> Number | None:
    number = operand(value)
    if number is None or not is_finite(number):
        return number
    if isinstance(number, int) and places >= 0:
        return number
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    result = exact.quantize(Decimal(1).scaleb(-places), way, _EXACT)
    if not result.is_finite():
        return number  # It has no digits so far from its point.
    if places == 0 or isinstance(number, int):
        return int(result)
    return float(result) if isinstance(number, float) else scalar(result)  # type: ignore[return-value]


FUNCTIONS: Final = (
    Function("COALESCE", coalesce, 1, None, "nulls"),
    Function("ABS", absolute, 1, 1),
    Function("ROUND", rounded, 1, 2),
    Function("FLOOR", floor, 1, 1),
    Function("CEILING", ceiling, 1, 1),
    Function("GREATEST", greatest, 1, None),
    Function("LEAST", least, 1, None),
    Function("POWER", power, 2, 2),
    Function("SQRT", _of_floats(math.sqrt), 1, 1),
    Function("LN", _of_floats(math.log), 1, 1),
    Function("LOG10", _of_floats(math.log10), 1, 1),
    Function("LOG2", _of_floats(math.log2), 1, 1),
    Function("EXP", _of_floats(math.exp), 1, 1),
    Function("SIGN", sign, 1, 1),
)
