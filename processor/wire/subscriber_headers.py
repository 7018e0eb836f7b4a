"""The headers of records as subscribers read them: the metadata of messages, those of deltas, and `touched`.

Two SOW records of a key show the paths that differ between them. The delta topic of a conflated topic also has the
paths that moved in the interval and came back to their old values (spec conflation.md). Header `touched` of a conflated
SOW record names these, so that a reader of the SOW topic computes the same delta.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import RecordRejected
from processor.values.kinds import strictly_equal
from processor.values.pointer import child, names
from processor.wire.headers import OUR_HEADERS, Name, header_text, last_value, read_kind, read_number, read_shown_text

if TYPE_CHECKING:
    from processor.record import Header, Headers, Kind, Record, Value
    from processor.values.pointer import Touched


KEPT_NAMES: Final = frozenset(
    (
        Name.VERSION,
        Name.KIND,
        Name.CORRELATION_ID,
        Name.CONFLATED,
        Name.FIRST_TIMESTAMP,
        Name.EXPIRES_AT,
        Name.TOUCHED,
    )
)
"""Headers of ours that a view keeps of a SOW record, next to its publisher's: messages are made of them."""

_VERSION: Final = Name.VERSION
_KIND: Final = Name.KIND
_SECOND_LENGTH: Final = len("2026-01-02T03:04:05")
_TIME_BEGIN_MS: Final = -62_135_596_800_000
"""The beginning of the year 1."""
_TIME_END_MS: Final = 253_402_300_800_000
"""The year 10000, which ISO 8601 has no four digits for."""


class PublisherHeaders(Mapping[str, str]):
    """The headers of a publisher by name, to be read only. Unlike a mapping proxy it can be copied and pickled."""

    __slots__ = ("_texts",)

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def __getitem__(self, name: str) -> str:
        """The text of a header."""
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the record."""
        return iter(self._texts)

    def __len__(self) -> int:
        """The number of headers."""
        return len(self._texts)

    def __repr__(self) -> str:
        return repr(self._texts)


NO_HEADERS: Final = PublisherHeaders({})
"""The headers of a record whose publisher gave none."""


class Metadata(NamedTuple):
    """The headers of one record, parsed; the fields are those of `Message`."""

    version: int | None
    correlation_id: str | None = None
    headers: Mapping[str, str] = NO_HEADERS
    conflated: int | None = None
    first_timestamp: str | None = None
    delta_base: int | None = None
    expires_at: str | None = None


# Metadata(...) goes through a function written in Python; this makes the same tuple in half the time.
_new: Final = tuple.__new__
_NOTHING_ELSE: Final = Metadata(None)[1:]


def is_kept(name: str) -> bool:
    """Return whether a view keeps a header of this name."""
    return name in KEPT_NAMES or name not in OUR_HEADERS


def metadata(headers: Headers | None) -> Metadata:
    """Parse the headers of a record."""
    number = None
    # Every message comes through here, and most records have no more than their version, some their kind.
    for name, value in headers or ():
        if name == _VERSION:
            number = read_number(value)
        elif name != _KIND:
            return _all(headers or [])
    return _new(Metadata, (number, *_NOTHING_ELSE))


def _all(headers: Headers) -> Metadata:
    ours: dict[str, bytes | None] = {}
    theirs: dict[str, str] = {}
    for name, value in headers:
        if name in OUR_HEADERS:
            ours[name] = value
        else:
            theirs[name] = read_shown_text(value) or ""
    find = ours.get
    return Metadata(
        read_number(find(_VERSION)),
        read_shown_text(find(Name.CORRELATION_ID)),
        PublisherHeaders(theirs) if theirs else NO_HEADERS,
        read_number(find(Name.CONFLATED)),
        _time(find(Name.FIRST_TIMESTAMP)),
        read_number(find(Name.DELTA_BASE)),
        _time(find(Name.EXPIRES_AT)),
    )


def correlation_id(headers: Headers | None) -> str | None:
    """Return the publisher's correlation id alone."""
    return read_shown_text(last_value(headers, Name.CORRELATION_ID))


def is_over(record: Record, now_ms: int) -> bool:
    """Return whether a record has an expiry time that has passed."""
    headers = record.headers
    if not headers or len(headers) == 1:  # A SOW record has its version in any case.
        return False
    expires_at_ms = read_number(last_value(headers, Name.EXPIRES_AT))
    return bool(expires_at_ms) and expires_at_ms <= now_ms  # type: ignore[operator]


def iso(timestamp_ms: int) -> str:
    """A time as ISO 8601 in UTC; one outside of the years 1 to 9999 is the nearest one in them.

    A publisher may give a record any time. A record without one, whose time is -1, has the last millisecond of 1969.
    """
    second, millisecond = divmod(min(max(timestamp_ms, _TIME_BEGIN_MS), _TIME_END_MS - 1), 1000)
    return f"{_second(second)}.{millisecond:03d}Z"


@lru_cache(maxsize=1024)
def _second(second: int) -> str:
    """A second in ISO 8601; kept, as many records have a time in the same one."""
    return datetime.fromtimestamp(second, UTC).isoformat()[:_SECOND_LENGTH]


def _time(value: bytes | None) -> str | None:
    """A time that a worker wrote in milliseconds; 0 is never."""
    time_ms = read_number(value)
    return iso(time_ms) if time_ms and time_ms < _TIME_END_MS else None


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


def command_of(headers: Headers | None) -> str | None:
    """Return the command of a delta on a topic without a SOW; None where it is the topic's default.

    Raises:
        UnicodeDecodeError: the header is not UTF-8.
    """
    return header_text(headers, Name.COMMAND)


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
