"""Numbers of every message type: ints, floats, Decimals, and BSON's Int64 and Decimal128."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from processor.record import Value

DECIMAL_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)
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
