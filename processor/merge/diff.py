"""The difference between two records, exactly: the delta of a full publish."""

from __future__ import annotations

from processor.record import Change, Value
from processor.values.equality import MISSING, PLAIN, strictly_equal
from processor.values.pointer import child, note_gone


def diff(old: Value | None, new: Value) -> Change:
    """Compare two records; neither is changed.

    Objects are descended, arrays and scalars compared whole. Without an old record everything is new: the delta is
    then the record itself, the same object.
    """
    if old is None:
        return Change(new, new, [])
    removed: list[str] = []
    return Change(new, changes(old, new, "", removed), removed)


def changes(old: Value, new: Value, path: str, removed: list[str]) -> Value:
    """The members of `new` that differ from `old`; pointers of those that are gone are appended to `removed`."""
    changed = {}
    found = 0
    for name, value in new.items():
        before = old.get(name, MISSING)
        if before is not MISSING:
            found += 1
        kind = type(value)
        if kind is type(before):
            if kind is dict:
                inner = changes(before, value, child(path, name), removed)
                if inner:
                    changed[name] = inner
                continue
            if value == before if kind in PLAIN else strictly_equal(before, value):
                continue
        changed[name] = value
    if found < len(old):
        note_gone(removed, path, [name for name in old if name not in new])
    return changed
