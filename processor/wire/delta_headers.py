"""The headers of delta records, as subscribers and tools read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import RecordRejected
from processor.wire.headers import Name, header_text, last_value, read_kind, read_number

if TYPE_CHECKING:
    from processor.record import Headers, Kind

_new: Final = tuple.__new__  # DeltaHeaders(...) goes through a function written in Python.


class DeltaHeaders(NamedTuple):
    """The headers of a delta record, parsed."""

    kind: Kind | None
    """`insert`, `delete`, `expire`; None is an update."""
    version: int | None
    """The key's version after it; None where the header is missing or no number."""
    base: int | None
    """The version that it applies to; 0 is no record, as for each insert."""
    is_empty: bool
    """True if nothing changed but the version."""
    removed: bytes | None
    """The header `removed` as it came."""

    @property
    def begins_life(self) -> bool:
        """True if versions do not simply count on with it: the record was deleted, or begins again."""
        if self.kind in ("insert", "delete", "expire"):
            return True
        return self.version is not None and self.base is not None and self.version <= self.base


def read_delta_headers(headers: Headers | None) -> DeltaHeaders:
    """Parse the headers of a delta record in one pass.

    Raises:
        UnicodeDecodeError: the header `kind` is not UTF-8.
    """
    if headers and len(headers) == 1 and headers[0][0] == Name.VERSION:
        number = read_number(headers[0][1])  # Most deltas have a version and nothing else.
        return _new(DeltaHeaders, (None, number, None if number is None else number - 1, False, None))
    kind: Kind | None = None
    version = base = removed = None
    is_empty = False
    for name, value in headers or ():
        if name == Name.VERSION:
            version = read_number(value)
        elif name == Name.DELTA_BASE:
            base = read_number(value)
        elif name == Name.KIND:
            kind = read_kind(value)
            if kind is None and value:
                value.decode()  # A text that this version does not know is an update, other bytes are damage.
        elif name == Name.REMOVED:
            removed = value
        elif name == Name.EMPTY:
            is_empty = value == b"true"
    if base is None and version is not None:
        base = 0 if kind == "insert" else version - 1
    return DeltaHeaders(kind, version, base, is_empty, removed)


def read_removed(text: bytes | None) -> tuple[str, ...]:
    """Return the paths that a header `removed` names; none without a header.

    Raises:
        RecordRejected: `bad_header`: it is no JSON array of texts.
    """
    if text is None:
        return ()
    try:
        pointers = json.loads(text.decode())
    except (ValueError, RecursionError):
        pointers = None
    if type(pointers) is not list or not all(type(pointer) is str for pointer in pointers):
        shown = text.decode(errors="backslashreplace")
        raise RecordRejected("bad_header", f"{Name.REMOVED} is {shown!r:.100}, not a JSON array of JSON Pointers")
    return tuple(pointers)


def removed_text(headers: Headers | None) -> bytes | None:
    """Return the header `removed` of a delta as it came; None where there is none."""
    return last_value(headers, Name.REMOVED)


def command_of(headers: Headers | None) -> str | None:
    """Return the command of a delta on a topic without a SOW; None where it is the topic's default.

    Raises:
        UnicodeDecodeError: the header is not UTF-8.
    """
    return header_text(headers, Name.COMMAND)
