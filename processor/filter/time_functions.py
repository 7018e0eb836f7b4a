"""Functions of time: seconds since the epoch, in UTC, with their fraction.

Formats are written and read by the directives of C, in English, the same on every machine. Python's own `strftime` and
`strptime` ask the C library, its locale and the time zone of the host.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from processor.filter.arithmetic import operand
from processor.filter.evaluation import Function, RecordMetadata
from processor.filter.limits import FORMAT_CHARACTERS_MAX, TIME_CHARACTERS_MAX
from processor.filter.syntax_tree import Scalar
from processor.filter.value import text_of
from processor.values.instant import Time, instant_of_text

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_DIRECTIVE: Final = re.compile(r"%(03f|.|\Z)", re.DOTALL)

_COMBINED: Final = {"T": "%H:%M:%S", "R": "%H:%M", "F": "%Y-%m-%d", "D": "%m/%d/%y", "r": "%I:%M:%S %p"} | {
    "c": "%a %b %e %H:%M:%S %Y",
    "x": "%m/%d/%y",
    "X": "%H:%M:%S",
}
"""Directives that stand for several others."""


def _week(moment: datetime, first_weekday: int) -> int:
    """The number of the week in its year; days before its first such weekday are in week 0."""
    return (moment.timetuple().tm_yday + 6 - (moment.weekday() - first_weekday) % 7) // 7


_WRITTEN: Final[dict[str, Callable[[datetime], str]]] = {
    "%": lambda moment: "%",  # noqa: ARG005
    "n": lambda moment: "\n",  # noqa: ARG005
    "t": lambda moment: "\t",  # noqa: ARG005
    "Y": lambda moment: f"{moment.year:04d}",
    "C": lambda moment: f"{moment.year // 100:02d}",
    "y": lambda moment: f"{moment.year % 100:02d}",
    "m": lambda moment: f"{moment.month:02d}",
    "B": lambda moment: _MONTHS[moment.month - 1],
    "b": lambda moment: _MONTHS[moment.month - 1][:3],
    "h": lambda moment: _MONTHS[moment.month - 1][:3],
    "d": lambda moment: f"{moment.day:02d}",
    "e": lambda moment: f"{moment.day:2d}",
    "j": lambda moment: f"{moment.timetuple().tm_yday:03d}",
    "A": lambda moment: _DAYS[moment.weekday()],
    "a": lambda moment: _DAYS[moment.weekday()][:3],
    "u": lambda moment: str(moment.isoweekday()),
    "w": lambda moment: str(moment.isoweekday() % 7),
    "G": lambda moment: f"{moment.isocalendar().year:04d}",
    "V": lambda moment: f"{moment.isocalendar().week:02d}",
    "U": lambda moment: f"{_week(moment, 6):02d}",
    "W": lambda moment: f"{_week(moment, 0):02d}",
    "H": lambda moment: f"{moment.hour:02d}",
    "I": lambda moment: f"{(moment.hour + 11) % 12 + 1:02d}",
    "p": lambda moment: "AM" if moment.hour < 12 else "PM",
    "M": lambda moment: f"{moment.minute:02d}",
    "S": lambda moment: f"{moment.second:02d}",
    "f": lambda moment: f"{moment.microsecond:06d}",
    "03f": lambda moment: f"{moment.microsecond // 1000:03d}",
    "s": lambda moment: str((moment - _EPOCH) // timedelta(seconds=1)),
    "z": lambda moment: "+0000",  # noqa: ARG005
    "Z": lambda moment: "UTC",  # noqa: ARG005
}
"""The text of each directive for a moment in UTC."""


class _Read(NamedTuple):
    """How a directive is read from a text."""

    pattern: re.Pattern[str]
    field: str
    """The name of the field that it gives."""
    number: Callable[[str], int]
    """Its value, of the text that was read."""


def _place_in(names: tuple[str, ...]) -> Callable[[str], int]:
    shorts = [name[:3].lower() for name in names]
    return lambda text: shorts.index(text[:3].lower())


def _read(pattern: str, field: str, number: Callable[[str], int] = int) -> _Read:
    return _Read(re.compile(pattern, re.ASCII | re.IGNORECASE), field, number)


def _offset_s(text: str) -> int:
    """The seconds of a zone such as +0200 or -03:30; of Z, UTC and GMT 0."""
    if text[0] not in "+-":
        return 0
    digits = text[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:] or 0)
    return -seconds if text[0] == "-" else seconds


def _names(names: tuple[str, ...]) -> str:
    """A pattern of names, in full or by their first three letters."""
    return "|".join(f"{name[:3]}(?:{name[3:]})?" for name in names)


_READ: Final[dict[str, _Read]] = {
    "Y": _read("[0-9]{4}", "year"),
    "y": _read("[0-9]{2}", "year", lambda text: int(text) + (1900 if int(text) >= 69 else 2000)),
    "m": _read("1[0-2]|0?[1-9]", "month"),
    **dict.fromkeys("Bbh", _read(_names(_MONTHS), "month", lambda text: _place_in(_MONTHS)(text) + 1)),
    **dict.fromkeys("de", _read(" ?(?:3[01]|[12][0-9]|0?[1-9])", "day")),
    "j": _read("36[0-6]|3[0-5][0-9]|[12][0-9]{2}|0?[1-9][0-9]|0{0,2}[1-9]", "day_of_year"),
    **dict.fromkeys("Aa", _read(_names(_DAYS), "weekday", _place_in(_DAYS))),
    "u": _read("[1-7]", "weekday", lambda text: int(text) - 1),
    "w": _read("[0-6]", "weekday", lambda text: (int(text) + 6) % 7),
    "G": _read("[0-9]{4}", "iso_year"),
    "V": _read("5[0-3]|0[1-9]|[1-4][0-9]|[1-9]", "iso_week"),
    "H": _read("2[0-3]|[01][0-9]|[0-9]", "hour"),
    "I": _read("1[0-2]|0?[1-9]", "hour_of_12", lambda text: int(text) % 12),
    "p": _read("[ap]m", "afternoon", lambda text: 12 * (text[0] in "pP")),
    "M": _read("[0-5]?[0-9]", "minute"),
    "S": _read("[0-5]?[0-9]", "second"),
    **dict.fromkeys(("f", "03f"), _read("[0-9]{1,6}", "microsecond", lambda text: int(text.ljust(6, "0")))),
    "z": _read("[+-][0-9]{2}:?[0-5][0-9](?::?[0-5][0-9])?|Z", "offset_s", _offset_s),
    "Z": _read("UTC|GMT|Z", "offset_s", _offset_s),
    "s": _read("-?[0-9]{1,12}", "seconds"),
}
_SPACES: Final = re.compile(r"\s+", re.ASCII)


def unknown_directive(form: str, *, is_read: bool = False) -> str | None:
    """Return the first directive of a format that is none, with its `%`; None if all are known.

    Args:
        form: the format.
        is_read: whether it is for reading a text, which knows fewer directives.
    """
    known = {*_READ, *_COMBINED, "%", "n", "t"} if is_read else {*_WRITTEN, *_COMBINED}
    return next((match[0] for match in _DIRECTIVE.finditer(form) if match[1] not in known), None)


def write_time(seconds: float, form: str) -> str | None:
    """Return a time as text; None if the format has an unknown directive, or the year is none of 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None
    if unknown_directive(form) is not None:
        return None
    return _DIRECTIVE.sub(lambda match: _WRITTEN[match[1]](moment), _spread(form))


def read_seconds(text: str, form: str) -> float | None:
    """Return the seconds since the epoch of a time that is written in a format; None if it is not.

    White space in the format stands for any white space. A part that the format lacks is that of 1900-01-01,
    midnight UTC. Months and days have English names, in any case.
    """
    fields: dict[str, int] = {}
    at, begin, form = 0, 0, _spread(form)
    for match in _DIRECTIVE.finditer(form):
        after = _literal(text, at, form[begin : match.start()])
        reader = _READ.get(match[1])
        if after is not None and match[1] in ("%", "n", "t"):
            after = _literal(text, after, {"%": "%", "n": " ", "t": " "}[match[1]])
        elif after is not None:
            found = None if reader is None else reader.pattern.match(text, after)
            if reader is None or found is None or reader.field in fields:
                return None
            fields[reader.field], after = reader.number(found[0]), found.end()
        if after is None:
            return None
        at, begin = after, match.end()
    if _literal(text, at, form[begin:]) != len(text):
        return None
    return _seconds(fields)


def _spread(form: str) -> str:
    """A format with simple directives alone."""
    return _DIRECTIVE.sub(lambda match: _COMBINED.get(match[1], match[0]), form)


def _literal(text: str, at: int, literal: str) -> int | None:
    """The place behind a part of a format without directives; None if the text has another one."""
    for index, word in enumerate(_SPACES.split(literal)):
        if index:
            spaces = _SPACES.match(text, at)
            if spaces is None:
                return None
            at = spaces.end()
        if not text.startswith(word, at):
            return None
        at += len(word)
    return at


def _seconds(fields: dict[str, int]) -> float | None:
    """The seconds since the epoch of the fields of a time; None if there is no such day."""
    if "seconds" in fields:
        return float(fields["seconds"])
    try:
        days = (_day(fields) - _EPOCH.date()).days
    except (KeyError, ValueError, OverflowError):
        return None
    hour = fields.get("hour", fields.get("hour_of_12", 0) + fields.get("afternoon", 0))
    seconds = ((days * 24 + hour) * 60 + fields.get("minute", 0)) * 60 + fields.get("second", 0)
    return ((seconds - fields.get("offset_s", 0)) * 1_000_000 + fields.get("microsecond", 0)) / 1_000_000


def _day(fields: dict[str, int]) -> date:
    """The day of the fields of a time."""
    if "iso_year" in fields or "iso_week" in fields:
        return date.fromisocalendar(fields["iso_year"], fields["iso_week"], fields["weekday"] + 1)
    year = fields.get("year", 1900)
    if "day_of_year" in fields:
        day = date(year, 1, 1) + timedelta(days=fields["day_of_year"] - 1)
        if day.year != year:
            raise ValueError("no such day in this year")
        return day
    return date(year, fields.get("month", 1), fields.get("day", 1))


def unix_timestamp(metadata: RecordMetadata) -> float:
    """The time now."""
    return time.time() if metadata.now_ms is None else metadata.now_ms / 1000


def strftime(form: Scalar, seconds: Scalar) -> str | None:
    """A time as text, by the directives of C; %f are microseconds, %03f milliseconds. NULL if there is none."""
    written, number = text_of(form), operand(seconds)
    if number is None or len(written) > FORMAT_CHARACTERS_MAX:
        return None
    try:
        return write_time(float(number), written)
    except OverflowError:
        return None


def strptime(text: Scalar, form: Scalar) -> float | None:
    """The time that a text is in such a form, in UTC unless it names a zone. NULL if it is none."""
    written = text_of(form)
    return None if len(written) > FORMAT_CHARACTERS_MAX else read_seconds(text_of(text), written)


def instant(value: Scalar) -> Time | None:
    """The time that an ISO 8601 text with a date names, in UTC unless it names a zone. NULL if it is none."""
    if type(value) is not str:
        return value if type(value) is Time else None
    read = instant_of_text(value) if len(value) <= TIME_CHARACTERS_MAX else None
    return None if read is None or not read.is_dated else Time(value, read)


FUNCTIONS: Final = (
    Function("INSTANT", instant, 1, 1),
    Function("UNIX_TIMESTAMP", unix_timestamp, 0, 0, "metadata", moves_by_itself=True),
    Function("STRFTIME", strftime, 2, 2),
    Function("STRPTIME", strptime, 2, 2),
)
