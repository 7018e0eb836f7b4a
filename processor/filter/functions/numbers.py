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
_ROUNDED: Final = Context(prec=24, traps=[])
"""Computes logarithms and powers: the C library's differ from machine to machine in the last digit."""
_LN_2: Final = _ROUNDED.ln(Decimal(2))
_BITS_MAX: Final = 1200
"""Beyond it, as the exponent of 2 or e, a result is no float any more."""


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
    """A number to the power of another; beyond all floats it is infinite, with its sign."""
    one, other = _float(base), _float(exponent)
    if one == 0 or not (math.isfinite(one) and math.isfinite(other)):
        try:
            return math.pow(one, other)  # The same everywhere: nothing is rounded.
        except ValueError:
            return NAN
    is_whole = other == math.floor(other)
    if one < 0 and not is_whole:
        return NAN
    sign_of = -1.0 if one < 0 and other % 2 == 1 else 1.0
    bits = math.log2(abs(one)) * other
    if abs(bits) > _BITS_MAX:
        return sign_of * (math.inf if bits > 0 else 0.0)
    return sign_of * float(_ROUNDED.power(Decimal(abs(one)), Decimal(other)))


def root(value: Scalar) -> float:
    """The square root."""
    number = _float(value)
    return NAN if number < 0 else math.sqrt(number)


def exponential(value: Scalar) -> float:
    """E to the power of a number."""
    number = _float(value)
    if abs(number) > _BITS_MAX:
        return math.inf if number > 0 else 0.0
    return number if is_nan(number) else float(_ROUNDED.exp(Decimal(number)))


def logarithm(value: Scalar) -> float:
    """The natural logarithm."""
    return _logarithm(value, _ROUNDED.ln)


def logarithm_10(value: Scalar) -> float:
    """The logarithm to base 10."""
    return _logarithm(value, _ROUNDED.log10)


def logarithm_2(value: Scalar) -> float:
    """The logarithm to base 2."""
    return _logarithm(value, lambda number: _ROUNDED.divide(_ROUNDED.ln(number), _LN_2))


def sign(value: Scalar) -> Number | None:
    """1 above 0, -1 below, 0 for 0."""
    number = operand(value)
    if number is None or is_nan(number):
        return number
    return (number > 0) - (number < 0)


def _float(value: Scalar) -> float:
    number = operand(value) or 0
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _logarithm(value: Scalar, function: Callable[[Decimal], Decimal]) -> float:
    number = _float(value)
    if not number > 0:
        return NAN
    return number if math.isinf(number) else float(function(Decimal(number)))


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
    Function("SQRT", root, 1, 1),
    Function("LN", logarithm, 1, 1),
    Function("LOG10", logarithm_10, 1, 1),
    Function("LOG2", logarithm_2, 1, 1),
    Function("EXP", exponential, 1, 1),
    Function("SIGN", sign, 1, 1),
)
