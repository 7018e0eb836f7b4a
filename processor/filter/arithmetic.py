"""Adds, subtracts, multiplies and divides: integers stay integers, NULL stays NULL, anything but a number is NAN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DivisionByZero
from operator import add, mul, sub, truediv
from typing import Final

from processor.filter.syntax_tree import Operator, Scalar
from processor.filter.value import NAN, Number, number, scalar

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
