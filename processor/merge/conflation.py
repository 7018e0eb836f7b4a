"""The deltas of a conflated topic: every path touched in an interval, with its last value (spec conflation.md)."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from processor.merge.delta import changes, diff
from processor.record import Value
from processor.values.kinds import MISSING, PLAIN, strictly_equal
from processor.values.pointer import Touched, child, note_gone

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHOLE: Final[Touched] = {}
"""The mark of a member touched whole: one for all of them, never written to."""

_ALIKE: Final = frozenset((bool, int))
"""Types whose values Python calls equal."""


def touch(tree: Touched, delivered: Value, states: Sequence[Value | None]) -> None:
    """Add the paths at which a state of an interval differs from the delivered record to the tree, in place.

    A path was touched if any of the states differs there: a value that moves and comes back deviates in
    between. So no two states of the interval need to be compared with each other. None is a deleted record, which
    touches all there was, as one without members does. A value that was not delivered needs no mark: at the end it is
    there, and new, or it is not.
    """
    if not all(states):  # One is deleted, or empty.
        tree.update(dict.fromkeys(delivered, _WHOLE))
        return
    there: Sequence[Value] = states
    last = there[-1]
    still = []
    for name, before in delivered.items():
        if tree.get(name) is _WHOLE:
            continue  # Touched whole is as much as can be.
        if type(before) is dict:
            _touch_object(tree, name, before, [state.get(name) for state in there])
        elif _differs(last.get(name, MISSING), before):  # Most of what moves at all has moved at the end.
            tree[name] = _WHOLE
        else:
            still.append(name)
    if still and len(there) > 1 and not _stand_still(still, delivered, there):
        for name in still:
            before = delivered[name]
            if any(_differs(state.get(name, MISSING), before) for state in there):
                tree[name] = _WHOLE


def add_touched(tree: Touched, other: Touched) -> None:
    """Add the paths of another tree to an interval's tree, in place; the other one is not changed."""
    for name, below in other.items():
        inner = tree.get(name)
        if not below or (inner is not None and not inner):  # One of them was touched whole.
            tree[name] = _WHOLE
            continue
        if inner is None:
            inner = tree[name] = {}
        add_touched(inner, below)


def _differs(value: Value, before: Value) -> bool:
    """Return whether a member has changed; it was no object."""
    kind = type(before)
    return kind is not type(value) or (value != before if kind in PLAIN else not strictly_equal(before, value))


def _stand_still(names: Sequence[str], delivered: Value, states: Sequence[Value]) -> bool:
    """Return whether these members are unchanged in all states, without a step of Python for each; no if in doubt."""
    if len(names) == 1:
        names = [*names, *names]  # Of several names `itemgetter` makes a tuple.
    members = itemgetter(*names)
    wanted = members(delivered)
    kinds = set(map(type, wanted))
    # Of these kinds two values that are equal are the same, as long as `True` cannot be taken for a `1`.
    if not kinds <= PLAIN or kinds >= _ALIKE:
        return False
    try:
        found = list(map(members, states))
    except KeyError:
        return False
    return found.count(wanted) == len(found) and kinds.issuperset(map(type, chain.from_iterable(found)))


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
    """Compute the update that turns `delivered` into `final`: the delta, and the pointers removed.

    The delta is the exact difference, and every touched path that exists at the end: a value that changed and came back
    is still sent. Neither record is changed; the delta shares its values with `final`. Key fields are not added.
    Without a delivered record it is everything.
    """
    if delivered is None:
        return diff(None, final).delta, []
    removed: list[str] = []
    return _differ(delivered, final, touched, "", removed), removed


def _differ(old: Value, new: Value, touched: Touched, path: str, removed: list[str]) -> Value:
    """`changes`, plus the touched paths."""
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
            if mark is None and strictly_equal(before, value):
                continue
        changed[name] = value
    note_gone(removed, path, [name for name in old if name not in new])
    return changed
