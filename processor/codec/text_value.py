"""Scalars as text, for message types that know nothing else."""

from __future__ import annotations

from decimal import Decimal

from processor.record import Value


def text_of(value: Value, place: str) -> str:
    """A scalar as the text that is written for it: a text as it is, a number in decimal, true or false.

    Args:
        value: the scalar.
        place: where it stands, for the error.

    Raises:
        TypeError: null, or not a scalar of these kinds.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if value is None:
        raise TypeError(f"{place} is null, which this message type cannot write; leave it out, or remove it by header")
    raise TypeError(f"{place} is {type(value).__name__}, which this message type cannot write; it takes text")
