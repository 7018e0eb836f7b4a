"""Applies a delta to a record, removes fields from one, and finds the delta between two records."""

from __future__ import annotations

from collections.abc import Iterable

from processor.errors import RecordRejected
from processor.record import Change, Value
from processor.values.kinds import MISSING, PLAIN, strictly_equal
from processor.values.pointer import child, names, note_gone, pointer_of


def apply_delta(record: Value | None, delta: Value, removed: Iterable[str] = ()) -> Value:
    """Bring a record up to date, in place, and return it; None begins a new one.

    Values are set field by field at the changed paths (null is a value), then the `removed` paths go. The record takes
    copies of the delta's objects: the delta stays the caller's.

    Raises:
        ValueError: `removed` holds something that is no JSON Pointer.
    """
    if record is None:
        record = {}
    _set(record, delta)
    for pointer in removed:
        remove_path(record, names(pointer))
    return record


def removal_paths(pointers: Value, key_fields: Iterable[str]) -> list[tuple[str, ...]]:
    """The paths that a header `remove` names.

    Args:
        pointers: the parsed header: a list of JSON Pointers.
        key_fields: the pointers of the key fields, which stay.

    Raises:
        RecordRejected: `bad_header`: not such a list, or it would take a key field away.
    """
    if type(pointers) is not list or not all(type(pointer) is str for pointer in pointers):
        raise RecordRejected(
            "bad_header", 'header remove is not a JSON array of JSON Pointers such as ["/customer/tier"]'
        )
    try:
        paths = [names(pointer) for pointer in pointers]
    except ValueError as error:
        raise _bad(str(error)) from None
    if () in paths:
        raise _bad("'' is the whole record; the command sow_delete removes it")
    for key_pointer in key_fields:
        key_path = names(key_pointer)
        for path in paths:
            if key_path[: len(path)] == path:
                raise _bad(f"{pointer_of(path)!r} would remove the key field {key_pointer}")
    return paths


def check_removable(record: Value, paths: Iterable[tuple[str, ...]]) -> None:
    """Make sure that each path leads through objects, as far as the record has it.

    A path may name a field that is not there, or that would be below a null: then there is nothing to remove.

    Raises:
        RecordRejected: `bad_header`: one leads into an array, or below another value that is no object.
    """
    for path in paths:
        value = record
        for depth, name in enumerate(path):
            if type(value) is not dict:
                raise _leads_into(value, path, depth)
            value = value.get(name, MISSING)
            if value is MISSING or value is None:
                break


def remove_paths(record: Value, pointers: Value, key_fields: Iterable[str]) -> list[str]:
    """Remove fields from a merged record, in place, and return the pointers of those that were there.

    Nothing is removed unless the whole list is good. The whole change by the command is `diff(old, record)` with the
    record as it was before the merge: a field that the delta brought and the header removed never was.

    Args:
        record: the record after the merge.
        pointers: the parsed header: a list of JSON Pointers.
        key_fields: the pointers of the key fields, which stay.

    Raises:
        RecordRejected: `bad_header`: as `removal_paths` and `check_removable`.
    """
    paths = removal_paths(pointers, key_fields)
    check_removable(record, paths)
    return [pointer_of(path) for path in paths if remove_path(record, path)]


def remove_path(record: Value, path: tuple[str, ...]) -> bool:
    """Remove the member at a path of names, in place; False if there is none."""
    *parents, last = path
    for name in parents:
        record = record.get(name)
        if type(record) is not dict:
            return False
    if last not in record:
        return False
    del record[last]
    return True


def _set(record: Value, delta: Value) -> None:
    for name, value in delta.items():
        if type(value) is dict:
            inner = record.get(name)
            if type(inner) is not dict:
                inner = record[name] = {}
            _set(inner, value)
        else:
            record[name] = value


def _bad(problem: str) -> RecordRejected:
    return RecordRejected("bad_header", f"header remove: {problem}")


def _leads_into(value: Value, path: tuple[str, ...], depth: int) -> RecordRejected:
    """The rejection of a path that meets a value without members after so many names."""
    pointer, place = pointer_of(path), pointer_of(path[:depth])
    if type(value) is list:
        return _bad(
            f"{pointer!r} leads into the array at {place}, which is one value; send the array without the element"
        )
    return _bad(f"{pointer!r} leads below {place}, which is a value of type {type(value).__name__} and no object")


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
