"""Strict equality: whether two parsed values would be written alike. Python's own says `True == 1 == 1.0`."""

from __future__ import annotations

from decimal import Decimal
from math import copysign
from typing import Final

from processor.record import Value

MISSING: Final = object()
"""Stands for the value of a member that is not there; of a type that no value has."""

PLAIN: Final = frozenset((str, int, bool, type(None)))
"""Types for which equality within the type is all there is to ask."""


def same(one: Value, other: Value) -> bool:
    """Whether two values are the same, to any depth. The order of an object's members is no difference."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in PLAIN:
        return bool(one == other)
    if kind is float:
        return one == other and (one != 0.0 or copysign(1.0, one) == copysign(1.0, other))
    if kind is list:
        return len(one) == len(other) and all(map(same, one, other))
    if kind is dict:
        return len(one) == len(other) and all(name in other and same(value, other[name]) for name, value in one.items())
    if kind is Decimal:
        # 1.0 and 1.00 are written differently; and a signalling NaN raises when it is asked whether it equals.
        return bool(one.compare_total(other) == 0)
    # What other message types have, such as times: two that are equal may still differ in their zone.
    return bool(one == other) and repr(one) == repr(other)
