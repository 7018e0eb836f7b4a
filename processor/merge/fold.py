"""Folds a delta into a record and finds the changes, in one pass. The hot path: every input record comes by.

That is why it is written out where a few small functions would do, and why the default policy has its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from processor.merge.delta import changes
from processor.record import Change, Value
from processor.values.kinds import MISSING, PLAIN, strictly_equal
from processor.values.pointer import child, note_gone


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """The part of a topic's settings that decides how a delta merges."""

    null_policy: Literal["ignore", "set", "remove"] = "ignore"
    """A null in a delta is as if missing, is a value, or removes the field."""
    merge_depth: int | None = None
    """Levels of objects that merge; those below are replaced whole, as they are. None: any depth; 1: no nested one."""

    def __post_init__(self) -> None:
        """Refuse a depth at which not even the record itself would merge."""
        if self.merge_depth is not None and self.merge_depth < 1:
            raise ValueError(f"merge_depth is {self.merge_depth}; it must be at least 1, or None for any depth")


Merge: TypeAlias = Callable[[Value, Value], Change]
"""Fold a delta into a record: `(record, delta) -> Change`. Both are used up: see `merge`."""

_ANY_DEPTH: Final = 1 << 30
# Change(...) goes through a function written in Python; this makes the same tuple in half the time.
_tuple = tuple.__new__


def merge(record: Value, delta: Value, policy: MergePolicy) -> Change:
    """Fold a delta into a record, in place (spec merge.md, rules 1 to 6, 9).

    The caller owns both and gives them up: the record is changed, the delta may lose its nulls, and they share values
    with the Change that is returned. Where many deltas meet one policy, `compile_merge` once is faster.
    """
    return compile_merge(policy)(record, delta)


def compile_merge(policy: MergePolicy) -> Merge:
    """The merge of one policy, as a function."""
    if policy == MergePolicy():
        return _merge_default
    nulls, depth = policy.null_policy, policy.merge_depth or _ANY_DEPTH

    def merge_by_policy(record: Value, delta: Value) -> Change:
        removed: list[str] = []
        return Change(record, _fold(record, delta, nulls, depth, "", removed), removed)

    return merge_by_policy


def insert(delta: Value, policy: MergePolicy) -> Change:
    """Merge a delta into no record: the delta itself, less the nulls that the policy does not keep.

    The delta becomes the record, and the change is all of it: the same object three times.
    """
    if policy.null_policy != "set":
        _drop_nulls(delta, policy.merge_depth or _ANY_DEPTH)
    return Change(delta, delta, [])


def _merge_default(record: Value, delta: Value) -> Change:
    """Nulls ignored, any depth."""
    return _tuple(Change, (record, _fold_default(record, delta), []))


def _fold_default(record: Value, delta: Value) -> Value:
    """`_fold` without what the default policy never needs."""
    changed = {}
    for name, new in delta.items():
        if new is None:
            continue
        kind = type(new)
        old = record.get(name, MISSING)
        if kind is type(old):
            if kind is dict:
                inner = _fold_default(old, new)
                if inner:
                    changed[name] = inner
                continue
            # A float that differs is a change at once; only an equal one, or NaN, needs the strict comparison.
            if (
                new == old
                if kind in PLAIN
                else (kind is not float or new == old or new != new) and strictly_equal(old, new)  # noqa: PLR0124 - NaN
            ):
                continue
        elif kind is dict:
            _drop_nulls(new, _ANY_DEPTH)
        record[name] = changed[name] = new
    return changed


def _fold(record: Value, delta: Value, nulls: str, depth: int, path: str, removed: list[str]) -> Value:
    """Fold in place and return the changes; pointers of removed members are appended to `removed`.

    `depth` counts the levels that merge, this one included.
    """
    changed = {}
    for name, new in delta.items():
        old = record.get(name, MISSING)
        if new is None and nulls != "set":
            if nulls == "remove" and old is not MISSING:
                del record[name]
                note_gone(removed, path, (name,))
            continue
        kind = type(new)
        if kind is type(old):
            if kind is dict:
                if depth > 1:
                    inner = _fold(old, new, nulls, depth - 1, child(path, name), removed)
                else:
                    inner = changes(old, new, child(path, name), removed)
                    record[name] = new
                if inner:
                    changed[name] = inner
                continue
            if (
                new == old
                if kind in PLAIN
                else (kind is not float or new == old or new != new) and strictly_equal(old, new)  # noqa: PLR0124 - NaN
            ):
                continue
        elif kind is dict and depth > 1 and nulls != "set":
            _drop_nulls(new, depth - 1)
        record[name] = changed[name] = new
    return changed


def _drop_nulls(value: Value, depth: int) -> None:
    """Remove null members from an object and from the objects in it, `depth` levels; not inside arrays."""
    nulls = []
    for name, member in value.items():
        if member is None:
            nulls.append(name)
        elif depth > 1 and type(member) is dict:
            _drop_nulls(member, depth - 1)
    for name in nulls:
        del value[name]
