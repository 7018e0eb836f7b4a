"""Compares two scalars: numbers, and texts that are numbers, by their value; times, and texts that are times, likewise.

Times stand above every number, and texts that are no numbers above both, where they are no times.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

from processor.filter.syntax_tree import Comparison, Scalar
from processor.filter.time_value import Time, read_time
from processor.filter.value import Number, is_finite, number
from processor.values.instant import Instant

Holds: TypeAlias = Callable[[Scalar, Scalar], bool]
"""True if a comparison holds of two scalars, neither of them NULL."""

OPERATORS: Final[dict[Comparison, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Python's operator for each comparison."""

_PLAIN_MAX: Final = 2**53

MIRRORED: Final[dict[Comparison, Comparison]] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The equivalent comparison with its sides exchanged."""


def comparison(name: Comparison) -> Holds:
    """The comparison as a function of two scalars."""
    holds = OPERATORS[name]

    def compare(left: Scalar, right: Scalar) -> bool:
        if type(left) is str and type(right) is str:
            return holds(left, right)
        one, other = number(left), number(right)
        if one is None or other is None:
            if type(left) is Time or type(right) is Time:
                return holds(_beside_time(left), _beside_time(right))
            # One of them is a text and no number: it stands above.
            return holds(one is None, other is None)
        if type(one) is not type(other):
            one, other = as_written(one, other)
        return holds(one, other)

    return compare


def _beside_time(value: Scalar) -> tuple[int, Instant | None]:
    """The place of a scalar in a comparison with a time."""
    if type(value) is str:
        instant = read_time(value)
        return (2, None) if instant is None else (1, instant)
    return (1, value.instant) if type(value) is Time else (0, None)


def as_written(one: Number, other: Number) -> tuple[Number, Number]:
    """Two numbers, to be compared by their decimal texts: the float 0.1 and the Decimal 0.1 are one number.

    So are the float 1e23 and the integer that is written so, though the float's value is a little less.
    """
    if type(other) is float and type(one) is not float:
        return _beside(one, other)
    if type(one) is float and type(other) is not float:
        right, left = _beside(other, one)
        return left, right
    return one, other


def is_plain(value: Scalar) -> bool:
    """Return whether Python compares a number with any integer and float just as the language does.

    Up to here every integer is a float, and so what a float is written as lies on the same side of it as its value.
    """
    return (type(value) is int or type(value) is float) and -_PLAIN_MAX <= value <= _PLAIN_MAX


def _beside(exact: Number, near: float) -> tuple[Number, Number]:
    if type(exact) is int and (is_plain(exact) or is_plain(near)):
        return exact, near
    if is_finite(near):
        return exact, Decimal(repr(near))
    # Beside infinity, and beside NaN, any number is as good as 0.
    return 0.0, near
