"""Compares a value with the one read back from its message, and finds the place of a value that cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from math import copysign
from typing import NoReturn

from processor.codec.depth import DEPTH_MAX
from processor.record import Value


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
