"""What a subscriber does with a delta record: the other half of the law that delta replay equals SOW."""

from __future__ import annotations

from collections.abc import Iterable

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
