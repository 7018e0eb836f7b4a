"""Makes the binary float that a field of a schema takes of a number, without changing the number silently."""

from __future__ import annotations

import struct
from math import isfinite

from processor.codec.read_back import brief
from processor.record import Value


def binary_float(value: Value, *, is_short: bool) -> float:
    """A number as a value of a field of 64 bits, or of 32 if it is short.

    A float in a field of 32 bits becomes the nearest one, as the schema asks for; an int must be held exactly.

    Raises:
        TypeError: neither a float nor an int.
        ValueError: the field does not hold the int, or the float is beyond its largest.
    """
    if not isinstance(value, int | float) or type(value) is bool:
        raise TypeError(f"{type(value).__name__} where a number is meant")
    try:
        held = float(value)
        if is_short and isfinite(held):
            (held,) = struct.unpack("<f", struct.pack("<f", held))
    except OverflowError:
        raise ValueError(f"{brief(value)} is beyond the largest float of {32 if is_short else 64} bits") from None
    if isinstance(value, int) and held != value:
        raise ValueError(f"no float of {32 if is_short else 64} bits is {brief(value)}")
    return held if is_short else float(value)
