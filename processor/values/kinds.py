"""The kinds of parsed values of all message types: numbers, strict equality, and the order of two values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from math import copysign
from typing import Final, Literal, NamedTuple, TypeAlias

from processor.errors import RecordRejected
from processor.record import Value
from processor.values.instant import instant_of, instant_of_text

ValueKind: TypeAlias = Literal["boolean", "number", "text", "bytes", "time", "array", "object", "other"]
"""A kind of value other than null. Dates and times of day are `time`; a UUID is `other`."""

UUIDS: Final[frozenset[ValueKind]] = frozenset(("other",))
"""The kinds of a field of UUIDs, the only values that a schema describes and that are `other`."""


class FieldType(NamedTuple):
    """The type of one field."""

    kinds: frozenset[ValueKind] | None = None
    """The kinds of its values. None: no schema restricts them. Empty: the schema has no such field."""
    any_number: bool = False
    """True if a number of any size and precision can be written there, as in JSON.

    If not, a sum of doubles is rounded to a double, and one that does not fit in 64 bits or in the field's decimals is
    rejected.
    """


DECIMAL_TEXT: Final = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)", re.ASCII)
"""A number as FIX, NVFIX and XML have it: a text. Exponents are none of theirs."""


def is_decimal128(value: Value) -> bool:
    """True if a value is BSON's decimal, of 34 digits. The package bson need not be installed: it goes by the name."""
    kind = type(value)
    return kind.__name__ == "Decimal128" and kind.__module__.startswith("bson.")


def is_number(value: Value) -> bool:
    """Return whether a value is a finite number; a bool is none."""
    kind = type(value)
    if kind is int:
        return True
    if isinstance(value, float):
        return value - value == 0.0  # Neither infinite nor NaN.
    if isinstance(value, Decimal):
        return value.is_finite()
    if isinstance(value, int):
        return kind is not bool
    return is_decimal128(value) and value.to_decimal().is_finite()


def exact(value: Value) -> Decimal:
    """A number as it is written: the float 0.1 is 0.1, not the nearest binary fraction to it."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    if isinstance(value, int):
        return Decimal(value)
    decimal: Decimal = value.to_decimal()
    return decimal


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


_WITHOUT: Final = (bool, dict, list, type(None))
"""Kinds without an order, though Python has one for some."""


def check_order(value: Value) -> None:
    """Make sure that a value can be compared with another one of its kind.

    Raises:
        RecordRejected: `schema_mismatch`: a boolean, an object, an array, NaN, an infinite number or null.
    """
    compare(value, value)


def compare(one: Value, other: Value) -> int:
    """Negative if `one` comes before `other`, 0 if neither does, positive if it comes after.

    Numbers compare by the value they are written with, of any types, and times as instants. Two texts that are
    both decimal numbers compare as numbers, so that the `9` of a FIX message comes before its `10`; two that are both
    ISO 8601 times compare as instants; other texts by their characters. Other kinds compare within their type.

    Raises:
        RecordRejected: `schema_mismatch`: of different kinds, or of one without an order.
    """
    kind = type(one)
    if is_number(one) and is_number(other):
        if kind is not type(other) or is_decimal128(one):
            one, other = exact(one), exact(other)
    elif isinstance(one, str) and isinstance(other, str):
        return _compare_texts(one, other)
    elif (instant := instant_of(one)) is not None and (other_instant := instant_of(other)) is not None:
        if instant.is_dated is not other_instant.is_dated:
            raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100} have no order")
        one, other = instant, other_instant
    elif kind is not type(other) or isinstance(one, _WITHOUT) or _is_numeric(one):
        raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100} have no order")
    try:
        return -1 if one < other else int(one > other)
    except TypeError as error:
        raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100} have no order: {error}") from None


def _is_numeric(value: Value) -> bool:
    """Return whether a value is of a type of numbers, finite or not."""
    return isinstance(value, int | float | Decimal) or is_decimal128(value)


def _compare_texts(one: str, other: str) -> int:
    if one == other:
        return 0
    if DECIMAL_TEXT.fullmatch(one) and DECIMAL_TEXT.fullmatch(other):
        number, other_number = Decimal(one), Decimal(other)
        return -1 if number < other_number else int(number > other_number)
    # A time of day has no order against an instant: as text it has one.
    if (
        (instant := instant_of_text(one)) is not None
        and (other_instant := instant_of_text(other)) is not None
        and instant.is_dated is other_instant.is_dated
    ):
        return -1 if instant < other_instant else int(instant > other_instant)
    return -1 if one < other else 1
