"""Makes the value that JSON writes of a Python value, or names the part that JSON does not have."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Final

from processor.codec.read_back import brief, step_to
from processor.record import Value

_INT_MIN: Final = -(2**63)
_INT_END: Final = 2**64


def json_value(value: Value) -> Value:
    """A copy of a value that consists of values that `decode` of JSON returns: it is read back as the same value.

    A subclass becomes its base: `numpy.float64` a float, an `IntEnum` an int. A tuple becomes an array, and an integer
    beyond 64 bits a Decimal, which is written with every digit.

    Raises:
        TypeError: JSON does not have a part of it, such as NaN, bytes or a datetime; the message has its JSON Pointer.
            Or it contains itself.
    """
    try:
        return _plain(value, "")
    except RecursionError:
        raise TypeError("nested deeper than can be written") from None


def _plain(value: Value, place: str) -> Value:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, float):
        if not isfinite(value):
            raise _refusal(place, f"{float(value)} is not a JSON value; leave it out, or publish null")
        return float(value)
    if isinstance(value, int):
        number = int(value)
        return number if _INT_MIN <= number < _INT_END else Decimal(number)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise _refusal(place, f"{value} is not a JSON value; leave it out, or publish null")
        return value if kind is Decimal else Decimal(value)
    if isinstance(value, dict):
        return {_name(name, place): _plain(member, place + step_to(name)) for name, member in value.items()}
    if isinstance(value, list) or kind is tuple:
        return [_plain(item, place + step_to(index)) for index, item in enumerate(value)]
    raise _refusal(place, f"{kind.__name__} is not a JSON value: {brief(value)}; publish its text or its number")


def _name(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise _refusal(place, f"the name {name!r:.100} of a member is no text")
    return _text(name, place)


def _text(value: str, place: str) -> str:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refusal(place, f"half a surrogate pair is no text: {text!r:.100}") from None
    return text


def _refusal(place: str, problem: str) -> TypeError:
    return TypeError(f"{place or 'the message'}: {problem}")
