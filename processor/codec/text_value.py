"""Scalars as text, for message types that know nothing else."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from processor.record import Value

_DIGITS_MAX: Final = 400
"""Enough for any double."""


def text_of(value: Value, place: str) -> str:
    """A scalar as the text that is written for it: a text as it is, a number in decimal, true or false.

    FIX has no exponents: a number is written without one, as long as it has no more than 400 digits.

    Args:
        value: the scalar.
        place: where it stands, for the error.

    Raises:
        TypeError: null, NaN or infinity, or not a scalar of these kinds.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return _number_text(value, place)
    if value is None:
        raise TypeError(f"{place} is null, which this message type cannot write; leave it out, or remove it by header")
    raise TypeError(f"{place} is {type(value).__name__}, which this message type cannot write; it takes text")


def _number_text(value: float | Decimal, place: str) -> str:
    """A number in decimal, with the digits that it is written with elsewhere."""
    exact = Decimal(repr(float(value))) if isinstance(value, float) else Decimal(value)
    if not exact.is_finite():
        raise TypeError(f"{place} is {exact}, which is no number in this message type; leave it out")
    text = str(exact)
    if "E" not in text or abs(exact.adjusted()) > _DIGITS_MAX:
        return text
    return format(exact, "f")
