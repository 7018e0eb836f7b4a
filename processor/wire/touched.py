"""The header `touched` of a conflated SOW record: paths that moved in the interval and came back to their old values.

Two SOW records of a key show the paths that differ between them. The delta topic also has the paths whose values came
back (spec conflation.md); this header lets a reader of the SOW topic compute the same delta.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.values.equality import strictly_equal
from processor.values.pointer import child, names
from processor.wire.headers import Name, last_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.record import Header, Headers, Value
    from processor.values.pointer import Touched

TOUCHED_BYTES_MAX: Final = 1024 * 1024
"""Longest header; a longer list is replaced by the pointer of the whole record, so that Kafka still takes it."""

_WHOLE_RECORD: Final = ""
"""The JSON Pointer of the record itself."""


def touched_header(delivered: Value, final: Value, touched: Touched) -> Header | None:
    """The header of one delivery, or None if no value came back.

    Args:
        delivered: the record delivered before.
        final: the record at the end of the interval.
        touched: the paths that moved in between, as `touch` collects them.
    """
    pointers: list[str] = []
    left_bytes = TOUCHED_BYTES_MAX
    for pointer in _returned(delivered, final, touched, ""):
        left_bytes -= len(pointer) + len('"",')
        if left_bytes < 0:
            break
        pointers.append(pointer)
    if not pointers and left_bytes >= 0:
        return None
    text = json.dumps(pointers, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    if left_bytes < 0 or len(text) > TOUCHED_BYTES_MAX:
        text = json.dumps([_WHOLE_RECORD]).encode()
    return Name.TOUCHED, text


def touched_paths(headers: Headers | None, record: Value) -> Touched | None:
    """The paths that the header names, as `conflated_delta` takes them; None without the header.

    Args:
        headers: those of a SOW record.
        record: the parsed record.

    Raises:
        RecordRejected: `bad_header`: not a JSON array of JSON Pointers.
    """
    text = last_value(headers, Name.TOUCHED)
    if text is None:
        return None
    try:
        pointers = json.loads(text.decode(errors="surrogatepass"))
        if type(pointers) is list and all(type(pointer) is str for pointer in pointers):
            return _tree([names(pointer) for pointer in pointers], record)
    except (ValueError, RecursionError):
        pass
    raise RecordRejected("bad_header", f"{Name.TOUCHED} is {text!r:.100}, not a JSON array of JSON Pointers")


def _returned(before: Value, after: Value, touched: Touched, path: str) -> Iterator[str]:
    """The pointers of touched paths that are still there and have their old value, or an object touched as a whole."""
    for name, below in touched.items():
        if name not in before or name not in after:
            continue
        old, new = before[name], after[name]
        both_objects = type(old) is dict and type(new) is dict
        if below:
            if both_objects:
                yield from _returned(old, new, below, child(path, name))
        elif both_objects or strictly_equal(old, new):
            yield child(path, name)


def _tree(paths: list[tuple[str, ...]], record: Value) -> Touched:
    """The paths as a tree; an empty one was touched whole."""
    tree: Touched = {}
    for path in paths:
        if not path:
            return {name: {} for name in record}
        *parents, last = path
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = {}
    return tree
