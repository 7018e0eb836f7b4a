"""The depth of nesting of a parsed message, of any type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from processor.errors import ConfigurationError, RecordRejected
from processor.record import Value

DEPTH_MAX: Final = 254
"""Deepest nesting that any message type takes: values that can be shown as JSON."""

_CONTAINERS: Final = (dict, list)


def depth_limit(max_depth: int, message_type: str) -> int:
    """The limit, if a message type can keep it.

    Raises:
        ConfigurationError: deeper than can be written.
    """
    if not 1 <= max_depth <= DEPTH_MAX:
        raise ConfigurationError(f"max_depth is {max_depth}; {message_type} takes 1 to {DEPTH_MAX}")
    return max_depth


def check_depth(value: Value, max_depth: int) -> None:
    """Refuse a value nested deeper than so many objects and arrays. Walks level by level: no depth exhausts the stack.

    Raises:
        RecordRejected: `too_deep`.
    """
    level = [value] if type(value) in _CONTAINERS else []
    # What is empty counts on the last level alone: a message may hold a million of it.
    for _ in range(max_depth - 1):
        if not level:
            return
        level = [child for parent in level for child in _members(parent) if type(child) in _CONTAINERS and child]
    if any(type(child) in _CONTAINERS for parent in level for child in _members(parent)):
        raise RecordRejected("too_deep", f"nested deeper than {max_depth} objects and arrays")


def check_writable_depth(value: Value, max_depth: int) -> None:
    """Refuse to write a value that would be too deep to be read.

    Raises:
        TypeError: as `check_depth` says it.
    """
    try:
        check_depth(value, max_depth)
    except RecordRejected as error:
        raise TypeError(error.detail) from None


def _members(value: Value) -> Iterable[Value]:
    """The values in an object or an array."""
    return value.values() if type(value) is dict else value
