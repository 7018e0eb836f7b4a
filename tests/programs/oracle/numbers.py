"""The order and the sum of values, by value (merge.md, "Kinds of values that JSON lacks" and "Field groups")."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import bson
import msgpack

from tests.programs.oracle.values import Rejected

_EXACT = Context(prec=2000)
_DECIMAL_TEXT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


def number_of(value: Any) -> Decimal | None:
    """The number that a value is, as it is written; None for other values, such as booleans and infinity."""
    if isinstance(value, bson.Decimal128):
        value = value.to_decimal()
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    exact = Decimal(repr(value)) if type(value) is float else Decimal(value)
    return exact if exact.is_finite() else None


def instant_of(value: Any) -> Decimal | None:
    """Seconds since the epoch of a time, or of a text that is an ISO 8601 time; None for other values."""
    if isinstance(value, msgpack.Timestamp):
        return Decimal(value.seconds) + Decimal(value.nanoseconds).scaleb(-9)
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return Decimal(since // timedelta(microseconds=1)).scaleb(-6)
    match = _ISO.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone == 'Z' else zone}")
    return Decimal(int(moment.timestamp())) + Decimal(f"0.{fraction or 0}")


def compare(one: Any, other: Any) -> int:
    """-1, 0 or 1: numbers by value, times as instants, other texts by characters.

    Raises:
        Rejected: `schema_mismatch`: the two have no order.
    """
    for read in (number_of, instant_of, _number_of_text):
        left, right = read(one), read(other)
        if left is not None and right is not None:
            return (left > right) - (left < right)
    if isinstance(one, str) and isinstance(other, str):
        return (one > other) - (one < other)
    raise Rejected("schema_mismatch", f"{one!r} and {other!r} have no order")


def total(one: Any, other: Any, *, has_kinds: bool) -> Any:
    """The sum of two numbers, of the field's own kind.

    Args:
        one: the record's value.
        other: the delta's.
        has_kinds: whether the message type has kinds of numbers. JSON's numbers are decimal digits, and their
            sum is exact; a sum of doubles is the double nearest to the exact sum.

    Raises:
        Rejected: `schema_mismatch`: one of them is no number.
    """
    if isinstance(one, str) and isinstance(other, str):
        left, right = _number_of_text(one), _number_of_text(other)
        if left is None or right is None:
            raise Rejected("schema_mismatch", f"{one!r} and {other!r} have no sum")
        return format(_EXACT.add(left, right), "f")
    left, right = number_of(one), number_of(other)
    if left is None or right is None:
        raise Rejected("schema_mismatch", f"{one!r} and {other!r} have no sum")
    result = _EXACT.add(left, right)
    if isinstance(one, bson.Decimal128):
        return bson.Decimal128(result)
    if isinstance(one, int) and isinstance(other, int):
        return type(one)(int(result))
    if has_kinds:
        return float(result) if isinstance(one, float) else result
    return real(result)


def check_addend(value: Any) -> None:
    """Refuse to begin a sum with a value that is no number.

    Raises:
        Rejected: `schema_mismatch`.
    """
    if number_of(value) is None and _number_of_text(value) is None:
        raise Rejected("schema_mismatch", f"{value!r} is no number")


def real(exact: Decimal) -> float | Decimal:
    """A number with a fraction or an exponent, as records of JSON hold it: a float if one is written just so."""
    near = float(exact)
    if math.isfinite(near) and Decimal(repr(near)) == exact:
        return near
    return exact.normalize(_EXACT)


def _number_of_text(value: Any) -> Decimal | None:
    return Decimal(value) if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value) else None
