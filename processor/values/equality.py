"""Strict equality: whether two parsed values are written with the same bytes. Python's says `True == 1 == 1.0`."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import copysign
from typing import Final

from processor.record import Value

MISSING: Final = object()
"""Stands for the value of a member that is not there; of a type that no value has."""

PLAIN: Final = frozenset((str, int, bool, type(None)))
"""Types for which equality within the type is all there is to ask."""


_SUBCLASSED: Final = (float, dict)
"""Types whose subclasses may hold a NaN."""


def strictly_equal(one: Value, other: Value) -> bool:
    """Return whether two values are the same, to any depth. NaN is the same as NaN.

    The order of an object's members is no difference, as a delta names members one by one. Inside an array it is one:
    an array is sent and replaced whole, so only equal bytes are the same array.
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in PLAIN:
        return bool(one == other)
    if kind is float:
        if one == other:
            return one != 0.0 or copysign(1.0, one) == copysign(1.0, other)
        return bool(one != one and other != other)  # noqa: PLR0124 - both are NaN
    if kind is list:
        return not _clearly_differ(one, other) and _equal_arrays(one, other)
    if kind is dict:
        return len(one) == len(other) and all(
            name in other and strictly_equal(value, other[name]) for name, value in one.items()
        )
    if issubclass(kind, Decimal):
        # 1.0 and 1.00 are written differently; and a signalling NaN raises when it is asked whether it equals.
        return bool(one.compare_total(other) == 0)
    if issubclass(kind, _SUBCLASSED):
        # Values of a union's further branches: such an object is replaced whole, as an array is.
        base = next(base for base in _SUBCLASSED if issubclass(kind, base))
        return _equal_arrays((base(one),), (base(other),))
    # Kinds of other message types, such as times: two that are equal may still differ in their zone.
    return bool(one == other) and repr(one) == repr(other)


def _clearly_differ(one: Value, other: Value) -> bool:
    """Return whether two arrays differ for Python too, and not by a NaN alone: a fast answer for most that differ."""
    try:
        return len(one) != len(other) or (
            one != other and any(a != b and not _equal_arrays((a,), (b,)) for a, b in zip(one, other, strict=True))
        )
    except ArithmeticError:  # A signalling NaN.
        return False


def _equal_arrays(one: Sequence[Value], other: Sequence[Value]) -> bool:
    """`strictly_equal` for two arrays, and for all in them; written out, as they may be long."""
    if len(one) != len(other):
        return False
    for element, counterpart in zip(one, other, strict=True):
        if element is counterpart:
            continue
        kind = type(element)
        if kind is not type(counterpart):
            return False
        if kind in PLAIN:
            if element != counterpart:
                return False
        elif kind is list:
            if not _equal_arrays(element, counterpart):
                return False
        elif kind is dict:
            if list(element) != list(counterpart) or not _equal_arrays(
                list(element.values()), list(counterpart.values())
            ):
                return False
        elif not strictly_equal(element, counterpart):
            return False
    return True
