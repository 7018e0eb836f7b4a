"""Applies a delta to a record, and removes fields from one."""

from __future__ import annotations

from collections.abc import Iterable

from processor.errors import RecordRejected
from processor.record import Value
from processor.values.pointer import names


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
        remove(record, names(pointer))
    return record


def remove_paths(record: Value, pointers: Value, key_fields: Iterable[str]) -> list[str]:
    """Remove fields from a merged record, in place, and return the pointers of those that were there.

    Nothing is removed unless the whole list is good. The whole change by the command is `diff(old, record)` with the
    record as it was before the merge: a field that the delta brought and the header removed never was.

    Args:
        record: the record after the merge.
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
        raise RecordRejected("bad_header", f"header remove: {error}") from None
    if () in paths:
        raise RecordRejected("bad_header", "header remove: '' is the whole record; the command sow_delete removes it")
    keys = {pointer: names(pointer) for pointer in key_fields}
    for pointer, path in zip(pointers, paths, strict=True):
        for key_pointer, key_path in keys.items():
            if key_path[: len(path)] == path:
                raise RecordRejected(
                    "bad_header", f"header remove: {pointer!r} would remove the key field {key_pointer}"
                )
    return [pointer for pointer, path in zip(pointers, paths, strict=True) if remove(record, path)]


def remove(record: Value, path: tuple[str, ...]) -> bool:
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
