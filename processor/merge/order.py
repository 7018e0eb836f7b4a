"""The order of two values: for sequence groups, `min` and `max`."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from processor.errors import RecordRejected
from processor.record import Value
from processor.values.instant import instant_of, instant_of_text
from processor.values.number import DECIMAL_TEXT, exact, is_decimal128, is_number

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
