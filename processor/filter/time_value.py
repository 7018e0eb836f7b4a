"""Times of records: they compare as instants, and as texts they are their shown form."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import Final

from processor.record import Value
from processor.values.instant import Instant, instant_of, instant_of_text

_KEPT_CHARACTERS_MAX: Final = 64
"""A longer text is no usual time: it is read each time that it is compared."""

_YEAR_OR_MONTH: Final = re.compile(r"[0-9]{4}(-[0-9]{2})?", re.ASCII)


class Time:
    """A date, a time of a day or a timestamp of a record. Two of the same instant are equal, of any types."""

    __slots__ = ("instant", "value")

    instant: Instant
    """The point in time: a date is its midnight, and a time without a zone is taken for UTC."""
    value: Value
    """The value of the record."""

    def __init__(self, value: Value, instant: Instant) -> None:
        self.value, self.instant = value, instant

    def __eq__(self, other: object) -> bool:
        return type(other) is Time and self.instant == other.instant

    def __hash__(self) -> int:
        return hash(self.instant)

    def __str__(self) -> str:
        """The text that `sowstream sow` shows."""
        value = self.value
        if isinstance(value, date | time):
            return value.isoformat()
        return _timestamp_text(value) if hasattr(value, "nanoseconds") else str(value)

    def __repr__(self) -> str:
        return f"Time({self})"


def time_of(value: Value) -> Time | None:
    """The time that a value of a message type is; None if it is none, such as a text."""
    if isinstance(value, datetime):
        instant = instant_of(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    elif isinstance(value, date | time):
        instant = instant_of_text(value.isoformat())
    else:
        instant = None if isinstance(value, str) else instant_of(value)
    return None if instant is None else Time(value, instant)


def read_time(text: str) -> Instant | None:
    """The instant that an ISO 8601 text names; None for every other text.

    Besides the texts that `instant_of_text` reads, a year and a month (`2024`, `2024-02`) are their first midnight.
    """
    if not "0" <= text[:1] <= "9":
        return None
    return _read(text) if len(text) > _KEPT_CHARACTERS_MAX else _kept(text)


def _read(text: str) -> Instant | None:
    month = _YEAR_OR_MONTH.fullmatch(text)
    if month is not None:
        text += "-01" if month[1] else "-01-01"
    return instant_of_text(text)


_kept: Final = lru_cache(maxsize=1024)(_read)
"""A time in a filter is compared with every record, and read once."""


def _timestamp_text(value: Value) -> str:
    """MessagePack's timestamp, of nanoseconds; its year may be beyond Python's."""
    try:
        whole = type(value)(value.seconds).to_datetime().strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError):
        return str(value)
    return f"{whole}.{value.nanoseconds:09d}Z" if value.nanoseconds else f"{whole}Z"
