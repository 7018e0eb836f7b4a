"""Instants: points in time that compare exactly, read from ISO 8601 texts and from the times of message types.

Below a second there is no rounding: a fraction keeps its digits, however many, so nanoseconds and finer times compare
right. Python's `datetime` has microseconds and years 1 to 9999, MessagePack and BSON have more.

A `Time` is a value of a record that is a time: it compares as an instant, and as a text it has the form that
`sowstream sow` shows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from typing import Final, NamedTuple

from processor.record import Value
from processor.values import cached_by_text


class Instant(NamedTuple):
    """A point in time, or a time of day. Two of the same `is_dated` compare as tuples do."""

    is_dated: bool
    """False for a time of day without a date, which has no order against an instant."""
    seconds: int
    """Whole seconds since 1970-01-01T00:00Z; of a time of day, since midnight UTC. Rounded down."""
    fraction: str
    """The decimal digits below a second, without zeros at the end: texts of such digits sort as the numbers do."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_LOCAL: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - texts without a zone are read as UTC
_EPOCH_DAY: Final = _EPOCH.toordinal()
_DAY_S: Final = 86_400
_HOUR_MINUTES: Final = 60
_HOUR_MAX: Final = 24  # at 24:00, the end of a day
_SECOND_MAX: Final = 60  # a leap second
_TEXT: Final = re.compile(
    r"(?:(\d{4})(-?)(\d\d)\2(\d\d)(?:[Tt ](?=\d)|\Z))?"
    r"(?:(\d\d)(?:(:?)(\d\d)(?:\6(\d\d)(?:[.,](\d+))?)?)?(.{0,6}))?",
    re.ASCII,
)
_DATE_ENDS: Final = frozenset("Tt ")
_POINTS: Final = frozenset(".,")
_ZONE: Final = re.compile(r"[Zz]|([+-])(\d\d)(?::?(\d\d))?", re.ASCII)
_ZONE_MAX: Final = len("+01:00")


def instant_of_text(text: str) -> Instant | None:
    """The instant that an ISO 8601 text names; None for every other text.

    Accepted are calendar dates with or without a time (`2024-02-29`, `2024-02-29T10:00:00.5+01:00`, a space in place of
    the `T`, the basic format `20240229T100000Z`) and times of day (`10:00:00Z`). A text without a zone is taken as UTC,
    a date without a time as its midnight. The hour 24 and the second 60 are the start of the next day and minute.
    Texts of digits alone are numbers, not times. Week dates, ordinal dates and years beyond four digits are not read.
    """
    # Ordinary texts end here, at a fraction of what the expression costs.
    if not "0" <= text[:1] <= "9" or (text[4:5] != "-" and text[2:3] != ":" and text[8:9] not in _DATE_ENDS):
        return None
    if text[16:17] == ":" and text[13:14] == ":" and text[10:11] in _DATE_ENDS:
        instant = _of_usual_text(text)
        if instant is not None:
            return instant
    return _of_any_text(text)


def instant_of(value: Value) -> Instant | None:
    """The instant that a value is: a text of one, a datetime with a zone, BSON's DatetimeMS, MessagePack's Timestamp.

    None for every other value, such as a datetime without a zone.
    """
    kind: type = type(value)
    read = _reader(kind)
    return None if read is None else read(value)


def _of_usual_text(text: str) -> Instant | None:
    """The instant of a text with all of date, minutes and seconds, by Python's own parser: twice as fast.

    Python's parser gets neither the fraction, of which it takes six digits, nor the zone, of which it takes `+01.5`.
    """
    fraction, zone = "", text[19:]
    if zone[:1] in _POINTS:
        zone = zone[1:].lstrip("0123456789")
        fraction = text[20 : len(text) - len(zone)]
        if not fraction:
            return None
    offset_s = _offset_s(zone) if len(zone) <= _ZONE_MAX else None
    if offset_s is None or text[5:6] == "W":  # Python reads the date of a week, too.
        return None
    try:
        since = datetime.fromisoformat(text[:19]) - _EPOCH_LOCAL
    except ValueError:
        return None
    return Instant(True, since.days * _DAY_S + since.seconds - offset_s, fraction.rstrip("0"))


def _of_any_text(text: str) -> Instant | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    year, _, month, day, hour, colon, minute, second, fraction, zone = match.groups()
    seconds = 0
    if year is not None:
        try:
            seconds = (date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY) * _DAY_S
        except ValueError:
            return None
    elif not colon:
        return None
    if hour is not None:
        of_day = _seconds_of_day(int(hour), int(minute or 0), int(second or 0), fraction or "")
        offset_s = _offset_s(zone)
        if of_day is None or offset_s is None:
            return None
        seconds += of_day - offset_s
    return Instant(year is not None, seconds, (fraction or "").rstrip("0"))


@functools.lru_cache(maxsize=256)
def _offset_s(zone: str) -> int | None:
    """Seconds that a zone is ahead of UTC; None if it is no zone. A text that names none is taken as UTC."""
    if not zone:
        return 0
    match = _ZONE.fullmatch(zone)
    if match is None:
        return None
    sign, hours, minutes = match.groups()
    offset = int(hours or 0) * 3600 + int(minutes or 0) * 60
    if offset >= _DAY_S or int(minutes or 0) >= _HOUR_MINUTES:
        return None
    return -offset if sign == "-" else offset


def _seconds_of_day(hour: int, minute: int, second: int, fraction: str) -> int | None:
    """Seconds since midnight; None where the clock never shows this."""
    if minute >= _HOUR_MINUTES or second > _SECOND_MAX or hour > _HOUR_MAX:
        return None
    if hour == _HOUR_MAX and (minute or second or fraction.strip("0")):
        return None
    return hour * 3600 + minute * 60 + second


def _of_instant(value: Instant) -> Instant:
    return value


def _of_datetime(value: datetime) -> Instant | None:
    if value.tzinfo is None:
        return None
    since = value - _EPOCH
    return Instant(True, since.days * _DAY_S + since.seconds, f"{since.microseconds:06d}".rstrip("0"))


def _of_milliseconds(value: Value) -> Instant:
    seconds, rest = divmod(int(value), 1000)
    return Instant(True, seconds, f"{rest:03d}".rstrip("0"))


def _of_timestamp(value: Value) -> Instant:
    return Instant(True, value.seconds, f"{value.nanoseconds:09d}".rstrip("0"))


_BY_NAME: Final[dict[tuple[str, str], Callable[[Value], Instant]]] = {
    ("bson", "DatetimeMS"): _of_milliseconds,
    ("msgpack", "Timestamp"): _of_timestamp,
}
"""Types of packages that need not be installed, by package and name."""


@functools.cache
def _reader(kind: type) -> Callable[[Value], Instant | None] | None:
    """The reader of a type's values; None for types that are no times."""
    if issubclass(kind, str):
        return instant_of_text
    if issubclass(kind, datetime):
        return _of_datetime
    if kind is Instant:
        return _of_instant
    return _BY_NAME.get((kind.__module__.partition(".")[0], kind.__qualname__))


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
        return timestamp_text(value) if hasattr(value, "nanoseconds") else str(value)

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
    return _read_month_or_time(text) if "0" <= text[:1] <= "9" else None


@cached_by_text  # A time in a filter is compared with every record.
def _read_month_or_time(text: str) -> Instant | None:
    month = _YEAR_OR_MONTH.fullmatch(text)
    if month is not None:
        text += "-01" if month[1] else "-01-01"
    return instant_of_text(text)


def timestamp_text(value: Value) -> str:
    """MessagePack's timestamp, of nanoseconds; its year may be beyond Python's."""
    try:
        whole = type(value)(value.seconds).to_datetime().isoformat(timespec="seconds")[:19]
    except (ValueError, OverflowError):
        return str(value)
    return f"{whole}.{value.nanoseconds:09d}Z" if value.nanoseconds else f"{whole}Z"
