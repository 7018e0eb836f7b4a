"""What a conflated topic tells: every path touched in an interval, with its value at the end (spec conflation.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from processor.merge.diff import changes, diff
from processor.merge.pointer import child, note_gone
from processor.merge.same import MISSING, PLAIN, same
from processor.record import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

Touched: TypeAlias = dict[str, "Touched"]
"""The touched members of an object, each with the touched members below it; an empty one was touched whole.

It holds names only: it may live as long as the interval and keeps no record alive.
"""

_WHOLE: Final[Touched] = {}
"""The mark of a member touched whole: one for all of them, never written to."""


def touch(tree: Touched, delivered: Value, states: Sequence[Value | None]) -> None:
    """Add to an interval's tree, in place, where states of the interval are not what was delivered before it.

    A path was touched if any of the states says something else there: a value that moves and comes back deviates in
    between. So no two states of the interval need to be compared with each other. None is a deleted record, which
    touches all there was. What was not delivered needs no mark: at the end it is there, and new, or it is not.
    """
    left = [(name, before, type(before)) for name, before in delivered.items() if tree.get(name) is not _WHOLE]
    plain = [member for member in left if member[2] is not dict]
    for state in states:
        if state is None:
            tree.update(dict.fromkeys(delivered, _WHOLE))
            return
        find, marks = state.get, len(tree)
        for name, before, kind in plain:
            value = find(name, MISSING)
            # Python's equality is the laxer one, and fast: only what passes it needs the strict one.
            if kind is type(value) and value == before and (kind in PLAIN or same(before, value)):
                continue
            tree[name] = _WHOLE
        if len(tree) > marks:  # Touched whole is as much as can be: the next states need not be asked.
            plain = [member for member in plain if member[0] not in tree]
    for name, before, kind in left:
        if kind is dict:
            _touch_object(tree, name, before, [state.get(name) for state in states if state is not None])


def _touch_object(tree: Touched, name: str, before: Value, values: Sequence[Value | None]) -> None:
    """`touch` one member that was delivered as an object."""
    if any(type(value) is not dict for value in values):
        tree[name] = _WHOLE
        return
    inner = tree.get(name, {})
    touch(inner, before, values)
    if inner:
        tree[name] = inner


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
