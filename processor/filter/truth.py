"""Three-valued logic after SQL-92: True, False, and None for NULL."""

from __future__ import annotations

from typing import Final, TypeAlias

from processor.filter.syntax_tree import Scalar
from processor.filter.time_value import Time
from processor.filter.value import elements, read_number
from processor.record import Value

Truth: TypeAlias = bool | None
"""A truth value; None is NULL."""

_WORDS: Final = {"true": True, "false": False}


def truth(value: Value) -> Truth:
    """A value as a truth value; of an array whether any element is true."""
    if value is True or value is False:
        return value
    found: Truth = None
    for element in elements(value):
        one = _truth(element)
        if one:
            return True
        if one is False:
            found = False
    return found


def _truth(value: Scalar) -> Truth:
    """A scalar: a number is true unless it is 0; `true` and `false` are words of message types that have only texts."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = _WORDS.get(value.lower())
        if word is not None:
            return word
        value = read_number(value)
    if value is None or type(value) is Time or value != value:  # noqa: PLR0124 - it is how NaN is told
        return None
    return value != 0
