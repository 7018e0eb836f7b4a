"""Parsed values: strict equality, paths, and the difference of two records.

A record is a dict, an array a list; scalars are those of the message type. Values are never changed in place: each
function returns new objects where it changes something.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final, TypeAlias

Path: TypeAlias = tuple[str, ...]

MISSING: Final = object()
"""The value at a path where a record has no member."""


class Rejected(Exception):
    """An input record goes to the dead-letter topic (merge.md, "Bad input")."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason


def is_object(value: Any) -> bool:
    """Return whether a value is an object, whose members merge."""
    return isinstance(value, dict)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same value of the same type (merge.md, rule 9); NaN is the same as NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return one == other or (one.is_nan() and other.is_nan())
    return bool(one == other)


def path_of(pointer: str) -> Path:
    """The names in a JSON Pointer (RFC 6901)."""
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:])


def pointer_of(path: Path) -> str:
    """The JSON Pointer of a path."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


def value_at(record: Any, path: Path) -> Any:
    """The value at a path; MISSING where there is none."""
    for name in path:
        if not is_object(record) or name not in record:
            return MISSING
        record = record[name]
    return record


def with_value(record: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """The record with a value at a path; other values on the path are replaced by objects."""
    name, *rest = path
    inner = record.get(name)
    return {**record, name: with_value(inner if is_object(inner) else {}, tuple(rest), value) if rest else value}


def without(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record without the member at a path, if it has one."""
    if value_at(record, path) is MISSING:
        return record
    name, *rest = path
    if rest:
        return {**record, name: without(record[name], tuple(rest))}
    return {other: value for other, value in record.items() if other != name}


def difference(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """The changed and added members, and the paths that are gone (merge.md, "The computed delta").

    Objects are descended; arrays and scalars are compared as units.
    """
    changed: dict[str, Any] = {}
    gone: list[Path] = [(name,) for name in old if name not in new]
    for name, value in new.items():
        before = old.get(name, MISSING)
        if is_object(value) and is_object(before):
            inner, inner_gone = difference(before, value)
            gone += [(name, *path) for path in inner_gone]
            if inner:
                changed[name] = inner
        elif not same(before, value):
            changed[name] = value
    return changed, gone


def applied(record: dict[str, Any], delta: dict[str, Any], removed: list[Path]) -> dict[str, Any]:
    """A record after one computed delta (merge.md, "Law"): values set at their paths, then the paths removed."""
    for name, value in delta.items():
        before = record.get(name)
        merges = is_object(value) and is_object(before)
        record = {**record, name: applied(before, value, []) if merges else value}
    for path in removed:
        record = without(record, path)
    return record


def leaves(value: dict[str, Any], path: Path = ()) -> dict[Path, Any]:
    """The scalars, arrays and empty objects of an object by their paths."""
    leaf_values: dict[Path, Any] = {}
    for name, member in value.items():
        if is_object(member) and member:
            leaf_values.update(leaves(member, (*path, name)))
        else:
            leaf_values[*path, name] = member
    return leaf_values
