"""Reads the rows of CSV files from their lines, on the executors: a quoted value may go on over several lines.

Spark's own functions read a line at a time, and take the first half of such a value for the whole of it. Here a row is
whole, or all of its lines are rejected. Quoted values are written again in one spelling that Spark reads exactly:
quotes in them doubled, as in RFC 4180.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_integration.foundation.sql import LONGEST, OUT_OF_RANGE

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_DDL: Final = (
    "text binary, raw binary, problem string, detail string, file string, line long, at long, partition int"
)
"""The columns of `CsvRows`: the row in the one spelling, its lines, and the reason if it is rejected."""

MISFIT: Final = "misfit"
# Quantifiers are possessive: a row may have megabytes of digits.
_NUMBER: Final = re.compile(r"[+-]?\d*+(?:\.(\d*+))?(?:[eE]([+-]?\d{1,9}))?", re.ASCII)
_OUT_OF_RANGE: Final = re.compile(OUT_OF_RANGE)
_WHOLE: Final = re.compile(r"[+-]?\d++", re.ASCII)
FLOAT_MAX: Final = 3.4028234663852886e38
"""The largest number of a column of Spark's FLOAT."""
_JAVA_NUMBER: Final = re.compile(r"[+-]?(?:0[xX].*|[\d.]++(?:[eE][+-]?\d++)?[dDfF])", re.ASCII)
_SPACES_OF_TIMES: Final = r"[\x00-\x20\x7f]*+"
"""The characters that Spark leaves out around a date or a time."""
_TIME_ALONE: Final = re.compile(rf"{_SPACES_OF_TIMES}(?:T\d|\d{{1,2}}:)", re.ASCII)
_FROM_A_YEAR: Final = re.compile(rf"{_SPACES_OF_TIMES}[+-]?\d{{4,7}}(?!\d)", re.ASCII)
"""The beginning of a text that Spark can take for a date: also a number alone, as a year."""
_FROM_A_DATE: Final = re.compile(rf"{_SPACES_OF_TIMES}\d{{4}}-\d{{1,2}}-\d{{1,2}}(?!\d)", re.ASCII)
_AFTER_A_DATE: Final = re.compile(rf"[T ] *+\d{{1,2}}:.*|{_SPACES_OF_TIMES}", re.ASCII | re.DOTALL)
_OPEN: Final = "a quoted value does not end on its line; from.options.multiLine: true reads such values"
_NEVER_CLOSED: Final = "a quoted value does not end in the file"
_AFTER_QUOTE: Final = "text follows the closing quote of a value"
_BREAK: Final = "a line break in a value without quotes"
_NUL: Final = "a NUL character in a quoted value, which Spark would leave out"
_SPACE_BEFORE: Final = "a quote after a space; from.options.ignoreLeadingWhiteSpace: true reads it"


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """The spelling of CSV files; pickled for the executors."""

    columns: tuple[str, ...]
    """The names of the columns."""
    has_header: bool = True
    """True if the first row of each file has the names of the columns."""
    separator: str = ","
    """The text between two values."""
    quote: str = '"'
    """The character around values; empty: none."""
    escape: str = "\\"
    """The character before a quote inside of a value; empty: none. A doubled quote is one always."""
    comment: str = ""
    """The character that begins a line to be left out; empty: none."""
    line_separator: str = "\n"
    """The text between two lines."""
    is_multi_line: bool = False
    """True if a quoted value may have line breaks."""
    skips_spaces: bool = False
    """True if spaces in front of a value do not count."""
    encoding: str = "utf-8"
    """The encoding of the files: one that leaves ASCII as it is."""
    decimals: tuple[tuple[int, int | None], ...] = ()
    """The places of the columns that are decimals, each with its scale; None where a locale reads them."""
    doubles: tuple[tuple[int, float], ...] = ()
    """The places of the columns that are doubles or floats, each with its largest number."""
    times: tuple[tuple[int, bool], ...] = ()
    """The places of the columns of times that no format reads, each with true for a date without a time."""
    row_bytes_max: int = 8 * 1024 * 1024
    """The longest row of several lines."""


class _Line(NamedTuple):
    """One line of a file."""

    text: str
    raw: bytes
    place: tuple[Any, ...]
    """Its file, number, time and partition."""
    is_decoded: bool


class _Row(NamedTuple):
    """A row, or a part of one that is rejected."""

    text: bytes | None
    raw: bytes
    problem: str | None
    detail: str | None
    place: tuple[Any, ...]


class CsvRows:
    """Converts the lines of files to rows, for `mapInArrow`; pickled for the executors."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._dialect = dialect

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read lines: columns `value`, `file`, `line`, `at` and `partition`, in order, each file from its beginning."""
        reader = _FileReader(self._dialect)
        file: str | None = None
        for batch in batches:
            rows: list[_Row] = []
            columns = (batch.column(name).to_pylist() for name in ("value", "file", "line", "at", "partition"))
            for value, *place in zip(*columns, strict=True):
                if place[0] != file:
                    rows += reader.end()
                    reader, file = _FileReader(self._dialect), place[0]
                rows += reader.read(value, tuple(place))
            yield _as_batch(rows)
        yield _as_batch(reader.end())


class _FileReader:
    """Reads one file, line by line."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._dialect, self._quotes = dialect, None if not dialect.quote else _Quotes(dialect)
        self._open: list[_Line] = []
        self._open_bytes = 0
        self._is_open = self._is_lost = self._is_read = False
        self._bad_header: str | None = None
        self._needs_header = dialect.has_header

    def read(self, raw: bytes, place: tuple[Any, ...]) -> Iterator[_Row]:
        """Take a line; yields the rows that it ends, or the lines that it rejects."""
        dialect = self._dialect
        data = raw if self._is_read else raw.removeprefix(BOM_UTF8)
        self._is_read = True
        line = _decoded(data, raw, place, dialect)
        if not self._is_open and _is_left_out(line.text, dialect):
            return
        if self._quotes is None:
            yield from self._row([line])
            return
        self._is_open = self._quotes.leaves_open(line.text, self._is_open)
        if self._is_lost:
            yield _rejected(line, _NEVER_CLOSED)
            self._is_lost = self._is_open
            return
        if not self._is_open and not self._open:
            yield from self._row([line])
            return
        self._open.append(line)
        self._open_bytes += len(raw)
        if not self._is_open:
            yield from self._row(self._taken())
        elif self._open_bytes > dialect.row_bytes_max:
            self._is_lost = True
            yield from (_rejected(part, _NEVER_CLOSED) for part in self._taken())

    def end(self) -> Iterator[_Row]:
        """The lines of a row that the file does not end."""
        return (_rejected(line, _NEVER_CLOSED) for line in self._taken())

    def _taken(self) -> list[_Line]:
        lines, self._open, self._open_bytes = self._open, [], 0
        return lines

    def _row(self, lines: list[_Line]) -> Iterator[_Row]:
        """The row in lines, of which the first has its place."""
        dialect = self._dialect
        if self._bad_header is not None:
            yield from (_rejected(line, self._bad_header, "bad_header") for line in lines)
            return
        text = dialect.line_separator.join([line.text for line in lines])
        if dialect.line_separator == "\n":
            text = text.removesuffix("\r")
        values, written, problem = self._values(text)
        if not all(line.is_decoded for line in lines):
            problem = f"not {dialect.encoding}"
        if self._needs_header:
            self._needs_header = False
            if problem is not None or [value.strip() for value in values] != list(dialect.columns):
                self._bad_header = f"the first row is not {dialect.separator.join(dialect.columns)}"
                yield from (_rejected(line, self._bad_header, "bad_header") for line in lines)
            return
        if problem is None and len(lines) > 1 and not dialect.is_multi_line:
            problem = _OPEN
        if problem is None and len(values) != len(dialect.columns):
            problem = f"{len(values)} values, and the schema has {len(dialect.columns)} columns"
        problem = problem or _not_as_written(values, dialect)
        if problem is not None:
            yield from (_rejected(line, problem) for line in lines)
            return
        raw = dialect.line_separator.encode(dialect.encoding).join([line.raw for line in lines])
        yield _Row(written.encode(), raw, None, None, lines[0].place)

    def _values(self, text: str) -> tuple[list[str], str, str | None]:
        """The values of a row, the row in the one spelling, and the problem of one that cannot be read exactly."""
        has_break = _has_break(text)
        if self._quotes is not None and (has_break or self._dialect.quote in text):
            return self._quotes.values(text)
        return text.split(self._dialect.separator), text, _BREAK if has_break else None


class _Quotes:
    """Finds quoted values."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._separator, self._quote, self._skips_spaces = dialect.separator, dialect.quote, dialect.skips_spaces
        quote = re.escape(dialect.quote)
        escape = "" if dialect.escape in ("", dialect.quote) else re.escape(dialect.escape)
        if escape:
            inner = f"(?:[^{quote}{escape}]|{escape}[{quote}{escape}]|{escape}(?![{quote}{escape}])|{quote}{quote})*+"
            self._escaped = re.compile(f"{escape}([{quote}{escape}])|{quote}({quote})")
        else:
            inner = f"(?:[^{quote}]|{quote}{quote})*+"
            self._escaped = re.compile(f"({quote}){quote}")
        self._rest = re.compile(f"({inner}){quote}", re.DOTALL)
        # The separator may be a space or a tab.
        self._spaces = re.compile(rf"(?:(?!{re.escape(dialect.separator)})[ \t])*+")

    def leaves_open(self, text: str, is_open: bool) -> bool:
        """Return whether a line ends inside of a quoted value, given whether it begins inside of one."""
        if self._quote not in text:
            return is_open
        at, begins_inside = 0, is_open
        while True:
            if not begins_inside:
                at = self._after_spaces(text, at)
                begins_inside = text.startswith(self._quote, at)
                at += begins_inside
            if begins_inside:
                match = self._rest.match(text, at)
                if match is None:
                    return True
                at, begins_inside = match.end(), False
            at = text.find(self._separator, at)
            if at < 0:
                return False
            at += len(self._separator)

    def values(self, text: str) -> tuple[list[str], str, str | None]:
        """The values of a row, the row in the one spelling, and its problem; see `_FileReader`."""
        values: list[str] = []
        written: list[str] = []
        problem: str | None = None
        at = 0
        while True:
            begin = self._after_spaces(text, at)
            if text.startswith(self._quote, begin):
                if begin > at and not self._skips_spaces:
                    problem = problem or _SPACE_BEFORE
                match = self._rest.match(text, begin + 1)
                if match is None:
                    return values, "", problem or _NEVER_CLOSED
                value = self._escaped.sub(lambda found: found[found.lastindex or 1], match[1])
                problem = problem or (_NUL if "\0" in value else None)
                values.append(value)
                written.append(f"{self._quote}{value.replace(self._quote, self._quote * 2)}{self._quote}")
                after = self._after_spaces(text, match.end())
                end = text.find(self._separator, after)
                if after != (len(text) if end < 0 else end):
                    problem = problem or _AFTER_QUOTE
            else:
                end = text.find(self._separator, at)
                value = text[at:] if end < 0 else text[at:end]
                values.append(value)
                # A line break without quotes would end the row for Spark.
                written.append(f"{self._quote}{value}{self._quote}" if _has_break(value) else value)
            if end < 0:
                return values, self._separator.join(written), problem
            at = end + len(self._separator)

    def _after_spaces(self, text: str, at: int) -> int:
        match = self._spaces.match(text, at)
        return at if match is None else match.end()


def _not_as_written(values: list[str], dialect: CsvDialect) -> str | None:
    """The problem of the first value that Spark would read as another one."""
    names = dialect.columns
    found = [_decimal_problem(names[place], values[place], scale) for place, scale in dialect.decimals]
    found += [_double_problem(names[place], values[place], largest) for place, largest in dialect.doubles]
    found += [_time_problem(names[place], values[place], is_date=is_date) for place, is_date in dialect.times]
    return next((problem for problem in found if problem is not None), None)


def _time_problem(name: str, value: str, *, is_date: bool) -> str | None:
    """The problem of a value to which Spark would add a part of a date, or of which it would leave one out."""
    if _TIME_ALONE.match(value):
        return f"{name} is {value!r:.50}, a time without a date, to which Spark would add that of today"
    if _FROM_A_YEAR.match(value) is None:
        return None
    date = _FROM_A_DATE.match(value)
    if date is None:
        return f"{name} is {value!r:.50}, which is no date with a year of four digits, a month and a day"
    if is_date and not _AFTER_A_DATE.fullmatch(value, date.end()):
        return f"{name} is {value!r:.50}, which has more than a date"
    return None


def _double_problem(name: str, value: str, largest: float) -> str | None:
    """The problem of a value that Java alone takes for a number, such as 12d, or that would be infinite."""
    text = value.strip()
    if _JAVA_NUMBER.fullmatch(text):
        return f"{name} is {text!r:.50}, which is no number"
    if not _NUMBER.fullmatch(text) or not any(map(str.isdigit, text)):
        return None
    if abs(float(text)) > largest:
        return f"{name} is {text!r:.50}, which is beyond the numbers of its column"
    held = float(text) if largest > FLOAT_MAX else unpack("f", pack("f", float(text)))[0]
    if _WHOLE.fullmatch(text) and Decimal(text) != Decimal(held):
        return f"{name} is {text!r:.50}, which has more digits than its column"
    return None


def _decimal_problem(name: str, value: str, scale: int | None) -> str | None:
    """The problem of a value that Spark would round to its column, or read without its commas: 1,5 as 15."""
    text = value.strip()
    if len(text) > LONGEST or _OUT_OF_RANGE.search(text):
        return f"{name} is {text!r:.50}, which is out of the range of decimals"
    if scale is None:
        return None
    number = _NUMBER.fullmatch(text)
    if number is None:
        return f"{name} is {text!r:.50}, which is no number; from.options.locale reads others" if "," in text else None
    if len((number[1] or "").rstrip("0")) - int(number[2] or 0) > scale:
        return f"{name} is {text!r:.50}, which has more than {scale} decimals"
    return None


def _has_break(text: str) -> bool:
    return "\n" in text or "\r" in text


def _decoded(data: bytes, raw: bytes, place: tuple[Any, ...], dialect: CsvDialect) -> _Line:
    try:
        return _Line(data.decode(dialect.encoding), raw, place, is_decoded=True)
    except UnicodeDecodeError:
        return _Line(data.decode(dialect.encoding, "replace"), raw, place, is_decoded=False)


def _is_left_out(text: str, dialect: CsvDialect) -> bool:
    """Return whether a line that begins a row is blank or a comment."""
    return not text.strip(" \r") or (dialect.comment != "" and text.startswith(dialect.comment))


def _rejected(line: _Line, detail: str, problem: str = MISFIT) -> _Row:
    return _Row(None, line.raw, problem, detail, line.place)


def _as_batch(rows: Iterable[_Row]) -> pa.RecordBatch:
    """The columns of `ROWS_DDL`."""
    import pyarrow as pa  # noqa: PLC0415 - needed here, on an executor

    listed = list(rows)
    kinds = {"text": pa.binary(), "raw": pa.binary(), "problem": pa.string(), "detail": pa.string()}
    columns = [pa.array([getattr(row, name) for row in listed], kind) for name, kind in kinds.items()]
    places = {"file": pa.string(), "line": pa.int64(), "at": pa.int64(), "partition": pa.int32()}
    columns += [pa.array([row.place[n] for row in listed], kind) for n, kind in enumerate(places.values())]
    return pa.RecordBatch.from_arrays(columns, names=[*kinds, *places])
