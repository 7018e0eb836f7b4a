"""Checks of values that message types share: depth, the text or float of a scalar, and values that are read back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import chain
from math import copysign, isfinite
from typing import Final, NoReturn, TypeAlias

from processor.errors import ConfigurationError, RecordRejected
from processor.record import Value

DEPTH_MAX: Final = 250
"""Deepest nesting that any message type takes: values that can be shown as JSON, which orjson writes up to 254 levels.

The others are those of a composite, and of messages, requests and answers around a record.
"""

_CONTAINERS: Final = (dict, list)

Wrappers: TypeAlias = "Mapping[type, Callable[[Value], Value]]"
"""Types of values that have others in them: the object or array of those; another value for none."""
_NO_WRAPPERS: Final[Wrappers] = {}


def depth_limit(max_depth: int, message_type: str) -> int:
    """The limit, if a message type can keep it.

    Raises:
        ConfigurationError: deeper than can be written.
    """
    if not 1 <= max_depth <= DEPTH_MAX:
        raise ConfigurationError(f"max_depth is {max_depth}; {message_type} takes 1 to {DEPTH_MAX}")
    return max_depth


def check_depth(value: Value, max_depth: int, wrappers: Wrappers = _NO_WRAPPERS) -> None:
    """Refuse a value nested deeper than so many objects and arrays. Walks level by level: no depth exhausts the stack.

    Args:
        value: the value.
        max_depth: the deepest level that is allowed.
        wrappers: types of the message type that have values in them, and count as the object or array of those.

    Raises:
        RecordRejected: `too_deep`.
    """
    level = [value] if type(value) in _CONTAINERS else []
    # What is empty counts on the last level alone: a message may hold a million of it.
    for _ in range(max_depth - 1):
        if not level:
            return
        level = [child for child in _children(level, wrappers) if type(child) in _CONTAINERS and child]
    if any(type(child) in _CONTAINERS for child in _children(level, wrappers)):
        raise RecordRejected("too_deep", f"nested deeper than {max_depth} objects and arrays")


def check_writable_depth(value: Value, max_depth: int, wrappers: Wrappers = _NO_WRAPPERS) -> None:
    """Refuse to write a value that would be too deep to be read; arguments as of `check_depth`.

    Raises:
        TypeError: as `check_depth` says it.
    """
    try:
        check_depth(value, max_depth, wrappers)
    except RecordRejected as error:
        raise TypeError(error.detail) from None


def _children(level: list[Value], wrappers: Wrappers) -> Iterable[Value]:
    """The values in objects and arrays, wrapped ones unwrapped."""
    children = chain.from_iterable(map(_values_in, level))
    if not wrappers:
        return children
    return (wrappers[type(child)](child) if type(child) in wrappers else child for child in children)


def _values_in(value: Value) -> Iterable[Value]:
    """The values in an object or an array."""
    return value.values() if type(value) is dict else value


def check_read_back(value: Value, back: Value) -> None:
    """Refuse a value whose message would be read as another value.

    A number must keep its value, a float also its sign and NaN, and an integer stays one. A tuple is an array, a
    subclass is what it is a subclass of, a mutable buffer is its bytes.

    Raises:
        TypeError: the message has the JSON Pointer of the place and both values.
    """
    _check(value, back, "")


def place_of_fault(value: Value, is_writable: Callable[[Value], bool]) -> str:
    """The JSON Pointer of the innermost value that cannot be written; the empty text for the message itself.

    Args:
        value: a value that cannot be written.
        is_writable: whether a message type can write a value as a member of a message.
    """
    place = ""
    for _ in range(DEPTH_MAX):  # A value that contains itself has no innermost one.
        for step, child in _members(value):
            if not is_writable(child):
                place, value = place + step, child
                break
        else:
            break
    return place


def step_to(name: object) -> str:
    """One step of a JSON Pointer (RFC 6901): to a member of an object or an item of an array."""
    return "/" + str(name).replace("~", "~0").replace("/", "~1")


def brief(value: Value) -> str:
    """A value as the beginning of its `repr`, for errors."""
    try:
        return f"{value!r:.100}"
    except (ValueError, RecursionError):  # Python writes no integer of more than 4,300 digits.
        return f"a very long {type(value).__name__}"


def _members(value: Value) -> Iterable[tuple[str, Value]]:
    if isinstance(value, dict):
        return ((step_to(name), member) for name, member in value.items())
    if isinstance(value, list) or type(value) is tuple:
        return ((step_to(index), item) for index, item in enumerate(value))
    return ()


def _check(value: Value, back: Value, place: str) -> None:
    if isinstance(value, dict) and isinstance(back, dict):
        if value.keys() != back.keys():
            _refuse(value, back, place)
        for name, member in value.items():
            _check(member, back[name], place + step_to(name))
    elif (isinstance(value, list) or type(value) is tuple) and isinstance(back, list):
        if len(value) != len(back):
            _refuse(value, back, place)
        for index, (item, other) in enumerate(zip(value, back, strict=True)):
            _check(item, other, place + step_to(index))
    elif not _is_same(value, back):
        _refuse(value, back, place)


def _is_same(value: Value, back: Value) -> bool:
    """Return whether two values that are neither objects nor arrays are the same."""
    kind = type(value)
    if value is None or kind is bool:
        return value is back
    if isinstance(value, float):
        if not isinstance(back, float):
            return False
        both_nan = value != value and back != back  # noqa: PLR0124 - it is how NaN is recognised
        return both_nan or (value == back and copysign(1.0, value) == copysign(1.0, back))
    if isinstance(value, int):
        return isinstance(back, int | Decimal) and type(back) is not bool and value == back
    if isinstance(value, str):
        return isinstance(back, str) and bool(value == back)
    if isinstance(value, bytes | bytearray | memoryview):
        return isinstance(back, bytes) and bytes(value) == bytes(back)
    return isinstance(back, kind) and bool(value == back)


def _refuse(value: Value, back: Value, place: str) -> NoReturn:
    raise TypeError(f"{place or 'the message'}: {brief(value)} would be read back as {brief(back)}")


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
