"""Values that JSON writes of Python's, and any parsed value as a line of JSON for people and tools."""

from __future__ import annotations

from base64 import b64encode
from decimal import Decimal
from math import isfinite
from typing import Final

import orjson

from processor.codec.value_checks import brief, step_to
from processor.record import Value
from processor.values.instant import timestamp_text

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


def to_json_line(value: Value) -> str:
    """One line of JSON.

    Numbers keep every digit. Bytes are Base64, dates and timestamps ISO 8601 (the latter in UTC), a UUID, a Decimal128
    and an ObjectId their text; anything else is its text in Python, or its type's name where the text cannot be made.
    """
    return orjson.dumps(value, default=_shown).decode()


def _shown(value: Value) -> Value:
    if isinstance(value, float):  # Of a class of its own, as of a branch of a union: orjson writes only plain ones.
        return float(value)
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value)) if value.is_finite() else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if type(value).__name__ == "Timestamp" and hasattr(value, "to_datetime"):  # MessagePack's: has nanoseconds.
        return timestamp_text(value)
    try:
        return str(value)
    except RecursionError:  # A stored reference of BSON, with thousands of others in one another.
        return f"a {type(value).__name__} that is nested too deep"
