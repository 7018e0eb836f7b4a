"""What a conflated topic tells: every path touched in an interval, with its value at the end (spec conflation.md)."""

from __future__ import annotations

from typing import TypeAlias

from processor.merge.diff import changes, diff
from processor.merge.pointer import child, names, note_gone
from processor.merge.same import same
from processor.record import Change, Value

Touched: TypeAlias = dict[str, "Touched"]
"""The touched members of an object, each with the touched members below it; an empty one was touched whole.

It holds names only: it may live as long as the interval and keeps no record alive.
"""


def touch(tree: Touched, change: Change) -> None:
    """Add the paths of one more change to an interval's tree, in place; an interval begins with `{}`."""
    _touch(tree, change.delta)
    for pointer in change.removed:
        path: Value = None
        for name in reversed(names(pointer)):
            path = {name: path}
        _touch(tree, path)


def conflated_delta(delivered: Value | None, final: Value, touched: Touched) -> tuple[Value, list[str]]:
    """What to tell a reader who has `delivered` so that it has `final`: the delta, and the pointers removed.

    The delta is the exact difference, and every touched path that exists at the end: a value that changed and came back
    is still sent. Neither record is changed; the delta shares its values with `final`. Key fields are not added.
    Without a delivered record it is everything.
    """
    if delivered is None:
        return diff(None, final).delta, []
    removed: list[str] = []
    return _differ(delivered, final, touched, "", removed), removed


def _touch(tree: Touched, delta: Value) -> None:
    for name, value in delta.items():
        if type(value) is not dict or not value:
            tree[name] = {}
            continue
        node = tree.get(name)
        if node is None:
            node = tree[name] = {}
        elif not node:
            continue  # Touched whole already: there is no more to say.
        _touch(node, value)


def _differ(old: Value, new: Value, touched: Touched, path: str, removed: list[str]) -> Value:
    """`changes`, plus what was touched."""
    changed = {}
    for name, value in new.items():
        mark = touched.get(name)
        if name in old:
            before = old[name]
            if type(value) is dict and type(before) is dict:
                pointer = child(path, name)
                inner = (
                    _differ(before, value, mark, pointer, removed) if mark else changes(before, value, pointer, removed)
                )
                # Touched whole: every member is told, and what is gone was found just now.
                if mark is not None and not mark:
                    changed[name] = value
                elif inner:
                    changed[name] = inner
                continue
            if mark is None and same(before, value):
                continue
        changed[name] = value
    note_gone(removed, path, [name for name in old if name not in new])
    return changed
