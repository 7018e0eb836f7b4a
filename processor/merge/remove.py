"""The header `remove`: a publisher's list of fields to take out of the merged record."""

from __future__ import annotations

from collections.abc import Iterable

from processor.errors import RecordRejected
from processor.merge.apply import remove
from processor.record import Value
from processor.values.pointer import names


def remove_paths(record: Value, pointers: Value, key_fields: Iterable[str]) -> list[str]:
    """Remove fields from a merged record, in place, and return the pointers of those that were there.

    Nothing is removed unless the whole list is good. What the command did in all is `diff(old, record)` with the
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
