"""Arithmetic: the operators, and the functions of numbers.

Integers stay integers, NULL stays NULL, and anything but a number is NAN. What has no result, such as the root of -1,
is NAN too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, DivisionByZero
from operator import add, mul, sub, truediv
from typing import Final

from processor.filter.compare import comparison
from processor.filter.evaluation import Function
from processor.filter.syntax_tree import Operator, Scalar
from processor.filter.value import NAN, Number, is_finite, is_nan, number, scalar

_DIGITS: Final = 50
"""Results of Decimals are rounded to so many digits."""

_INTEGER_END: Final = 10**40
"""From here on an integer that was computed is a float."""

_CONTEXT: Final = Context(prec=_DIGITS, traps=[DivisionByZero])
"""Raises no more than Python does of floats: an operation without a result gives NaN."""


def operand(value: Scalar) -> Number | None:
    """A scalar as arithmetic takes it: NULL is None, a text that is no number NAN."""
    if value is None:
        return None
    found = number(value)
    return NAN if found is None else found


def negative(value: Scalar) -> Number | None:
    """The value with the other sign."""
    found = operand(value)
    if found is None:
        return None
    return _plain(_CONTEXT.minus(found)) if type(found) is Decimal else -found


def operation(name: Operator) -> Callable[[Scalar, Scalar], Number | None]:
    """The operator as a function of two scalars."""
    natural, of_decimals = _NATURAL[name], _OF_DECIMALS[name]

    def compute(left: Scalar, right: Scalar) -> Number | None:
        one = left if type(left) is int or type(left) is float else operand(left)
        other = right if type(right) is int or type(right) is float else operand(right)
        if one is None or other is None:
            return None
        try:
            if type(one) is Decimal or type(other) is Decimal:
                if type(one) is not float and type(other) is not float:
                    return _plain(of_decimals(Decimal(one), Decimal(other)))
                one, other = float(one), float(other)
            result = natural(one, other)
            return _as_float(result) if type(result) is int and abs(result) >= _INTEGER_END else result
        except (ArithmeticError, ValueError):
            return NAN

    return compute


def _divided(one: Number, other: Number) -> Number:
    """Towards 0 of integers, as in SQL and C: -5 / 3 is -1."""
    if isinstance(one, int) and isinstance(other, int):
        quotient = abs(one) // abs(other)
        return quotient if (one < 0) is (other < 0) else -quotient
    return one / other  # type: ignore[operator]


def _remainder(one: Number, other: Number) -> Number:
    """With the sign of the left side."""
    if isinstance(one, int) and isinstance(other, int):
        remainder = abs(one) % abs(other)
        return -remainder if one < 0 else remainder
    return math.fmod(one, other)


def _as_float(value: int) -> float:
    """No integer grows on and on: a float gives its magnitude."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _plain(value: Decimal) -> Number:
    """A Decimal that was computed, as a record would have it."""
    return scalar(value)  # type: ignore[return-value]


_NATURAL: Final[dict[Operator, Callable[[Number, Number], Number]]] = {
    "+": lambda one, other: one + other,  # type: ignore[operator]
    "-": lambda one, other: one - other,  # type: ignore[operator]
    "*": lambda one, other: one * other,  # type: ignore[operator]
    "/": _divided,
    "%": _remainder,
}

OF_FLOATS: Final[Mapping[Operator, Callable[[float, float], float]]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": truediv,
    "%": math.fmod,
}
"""The operators for two numbers of which one is a float: without limits, in one step."""

_OF_DECIMALS: Final[dict[Operator, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _CONTEXT.add,
    "-": _CONTEXT.subtract,
    "*": _CONTEXT.multiply,
    "/": _CONTEXT.divide,
    "%": _CONTEXT.remainder,
}

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
