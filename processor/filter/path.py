"""Finds the value at a path. Where an array is on the way, every element of it is gone through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from processor.filter.limits import FEW_ELEMENTS
from processor.filter.record_metadata import RecordMetadata
from processor.record import Value

Evaluate: TypeAlias = Callable[[Value, RecordMetadata], Value]
"""The compiled form of a part of a filter: a function of the record, an object, and of its metadata."""

_MISSING: Final = object()


def compile_path(parts: tuple[str | int, ...]) -> Evaluate:
    """The path as a function: what is there, just as it is, or None."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return _member(parts[0])
    if all(isinstance(part, str) for part in parts):
        return _members(parts)  # type: ignore[arg-type]

    def find(record: Value, metadata: RecordMetadata) -> Value:
        value = record
        for part in parts:
            value = _at(value, part) if isinstance(part, int) else _below(value, part, metadata)
        return value

    return find


def _member(name: str) -> Evaluate:
    return lambda record, metadata: record.get(name)  # noqa: ARG005


def _members(names: tuple[str, ...]) -> Evaluate:
    def find(record: Value, metadata: RecordMetadata) -> Value:
        value = record
        for name in names:
            value = value.get(name) if type(value) is dict else _below(value, name, metadata)
        return value

    return find


def _below(value: Value, name: str, metadata: RecordMetadata) -> Value:
    """The member of an object; of an array of objects the array of all their members of that name.

    Each element of the array is a step of the evaluation's budget.
    """
    if isinstance(value, dict):  # Of a class of its own where it replaces whole.
        return value.get(name)
    if type(value) is not list:
        return None
    if len(value) > FEW_ELEMENTS:
        metadata.spend(len(value))
    found: list[Value] = []
    pending = value[::-1]
    while pending:
        element = pending.pop()
        if type(element) is list:
            metadata.spend(len(element) + 1)
            pending.extend(reversed(element))
        elif isinstance(element, dict) and (member := element.get(name, _MISSING)) is not _MISSING:
            # Arrays in arrays make one array.
            if type(member) is list:
                metadata.spend(len(member) // 8)
                found.extend(member)
            else:
                found.append(member)
    return found


def _at(value: Value, index: int) -> Value:
    """An element of an array; a value that is no array is its own element 0."""
    if type(value) is list:
        return value[index] if index < len(value) else None
    return value if index == 0 else None
