"""Merges a delta into a record (merge.md, "Merging a delta", rules 1 to 6)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from tests.programs.oracle.values import is_object

NullPolicy: TypeAlias = Literal["ignore", "set", "remove"]


def merged(record: dict[str, Any], delta: dict[str, Any], nulls: NullPolicy, depth: int | None) -> dict[str, Any]:
    """The record after a delta.

    Args:
        record: the record before; an empty one where there is none.
        delta: the fields that change.
        nulls: the meaning of a null in the delta (rule 6).
        depth: how many levels merge; below, objects are replaced as they are (rule 2). None: all of them.
    """
    result = dict(record)
    for name, value in delta.items():
        if value is None and nulls == "ignore":
            continue
        if value is None and nulls == "remove":
            result.pop(name, None)
        elif is_object(value) and depth != 1:
            before = result.get(name)
            # An object onto anything but an object replaces it: its nulls still follow the policy (rule 4).
            deeper = None if depth is None else depth - 1
            result[name] = merged(before if is_object(before) else {}, value, nulls, deeper)
        else:
            result[name] = value
    return result
