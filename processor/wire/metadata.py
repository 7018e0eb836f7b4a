"""The metadata of a record: what its headers say to a subscriber."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.record import OUR_HEADERS, Name
from processor.subscriptions.message import NO_HEADERS, PublisherHeaders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Headers, Record

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
"""Headers of ours that a view keeps of a SOW record, next to those of its publisher: its messages are made of them."""

_VERSION: Final = Name.VERSION
_KIND: Final = Name.KIND
_DIGITS_MAX: Final = 18
"""Longest number that a worker writes."""
_SECOND_LENGTH: Final = len("2026-01-02T03:04:05")
_TIME_END_MS: Final = 253_402_300_800_000
"""The year 10000, which ISO 8601 has no four digits for."""


class Metadata(NamedTuple):
    """What the headers of one record say; the fields are those of `Message`."""

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
    """Whether a view keeps a header of this name."""
    return name in KEPT_NAMES or name not in OUR_HEADERS


def metadata(headers: Headers | None) -> Metadata:
    """All that some headers say; of a header that occurs more than once the last one counts."""
    number = None
    # Every message comes through here, and most records say no more than their version, some their kind.
    for name, value in headers or ():
        if name == _VERSION:
            number = _number(value)
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
            theirs[name] = _text(value) or ""
    find = ours.get
    return Metadata(
        _number(find(_VERSION)),
        _text(find(Name.CORRELATION_ID)),
        PublisherHeaders(theirs) if theirs else NO_HEADERS,
        _number(find(Name.CONFLATED)),
        _time(find(Name.FIRST_TIMESTAMP)),
        _number(find(Name.DELTA_BASE)),
        _time(find(Name.EXPIRES_AT)),
    )


def version(headers: Headers | None) -> int | None:
    """The version of a record alone."""
    return _number(_last(headers, _VERSION))


def correlation_id(headers: Headers | None) -> str | None:
    """The publisher's correlation id alone."""
    return _text(_last(headers, Name.CORRELATION_ID))


def kind(headers: Headers | None) -> bytes | None:
    """The kind of an update; None where it is an ordinary one."""
    return _last(headers, _KIND)


def is_over(record: Record, now_ms: int) -> bool:
    """Whether a record has an expiry time that has passed."""
    headers = record.headers
    if not headers or len(headers) == 1:  # A SOW record has its version in any case.
        return False
    expires_at_ms = _number(_last(headers, Name.EXPIRES_AT))
    return bool(expires_at_ms) and expires_at_ms <= now_ms  # type: ignore[operator]


def iso(timestamp_ms: int) -> str:
    """A time as ISO 8601 in UTC."""
    second, millisecond = divmod(timestamp_ms, 1000)
    return f"{_second(second)}.{millisecond:03d}Z"


@lru_cache(maxsize=1024)
def _second(second: int) -> str:
    """A second in ISO 8601; kept, as many records have a time in the same one."""
    return datetime.fromtimestamp(second, UTC).isoformat()[:_SECOND_LENGTH]


def _last(headers: Headers | None, wanted: str) -> bytes | None:
    found = None
    for name, value in headers or ():
        if name == wanted:
            found = value
    return found


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) <= _DIGITS_MAX else None


def _text(value: bytes | None) -> str | None:
    """A header's text; a byte that is not UTF-8 is shown, not hidden."""
    return None if value is None else value.decode(errors="backslashreplace")


def _time(value: bytes | None) -> str | None:
    """A time that a worker wrote in milliseconds; 0 is never."""
    time_ms = _number(value)
    return iso(time_ms) if time_ms and time_ms < _TIME_END_MS else None
