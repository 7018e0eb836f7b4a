"""The metadata of a message: the headers of its record, as subscribers get them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.wire.headers import OUR_HEADERS, Name, last_value, read_number, read_shown_text

if TYPE_CHECKING:
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
