"""The rows of CSV files: whole, or with all of their lines in the quarantine."""

from __future__ import annotations

import csv
import io
import random
import time

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from spark_integration.pipeline.ingesting.csv_rows import CsvDialect, CsvRows

NAMES = ("value", "file", "line", "at", "partition")
TYPES = (pa.binary(), pa.string(), pa.int64(), pa.int64(), pa.int32())


def read(*files, size=3, **dialect):
    """The rows of files, as pairs of the text or the problem, and the line."""
    dialect = CsvDialect(**{"columns": ("id", "note"), "has_header": False, **dialect})
    separator = dialect.line_separator.encode()
    lines = [
        (line, f"f{number}", place, 0, None)
        for number, data in enumerate(files)
        for place, line in enumerate(data.removesuffix(separator).split(separator), 1)
    ]
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array(part, kind) for part, kind in zip(zip(*lines[at : at + size], strict=True), TYPES, strict=True)],
            names=list(NAMES),
        )
        for at in range(0, len(lines), size)
    ]
    rows = [row for batch in CsvRows(dialect)(iter(batches)) for row in batch.to_pylist()]
    for row in rows:
        assert (row["text"] is None) == (row["problem"] is not None) == (row["detail"] is not None)
    return [(row["text"] or row["detail"], row["line"]) for row in rows]


def split(text):
    """The values in a row of the one spelling, by Python's reader."""
    return next(csv.reader(io.StringIO(text.decode(), newline="")))


OPEN = "a quoted value does not end on its line; from.options.multiLine: true reads such values"
NEVER = "a quoted value does not end in the file"


def test_a_line_break_in_quotes_is_whole_or_set_aside_with_both_lines():
    """With multiLine a value has its line break; without it both lines are rejected, and the rows around are read."""
    data = b'1,"see order\n7, cancelled"\n8,"good"\n'
    assert read(data, is_multi_line=True) == [(b'1,"see order\n7, cancelled"', 1), (b'8,"good"', 3)]
    assert read(data) == [(OPEN, 1), (OPEN, 2), (b'8,"good"', 3)]
    assert read(data.replace(b"\n", b"\r\n"), is_multi_line=True)[0] == (b'1,"see order\r\n7, cancelled"', 1)


@pytest.mark.parametrize("is_multi_line", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        b'1,"see\n7,cancelled\n8,good\n',  # Never closed.
        b'1,"see\n7,"x"\n',  # The second quote closes the first.
        b'1, "see\n7,x"\n',  # A space in front.
        b'1,"a"b,"see\n7,x"\n',  # A bad value in front.
        b'1,"see\\"\n7,x"y\n',  # Text behind the closing quote.
        b'1,"C:\\dir\\"\n7,x\n',
    ],
)
def test_no_part_of_a_row_is_a_row(data, is_multi_line):
    """No line of a row with a broken quoted value is published."""
    rows = read(data, is_multi_line=is_multi_line)
    assert {type(text) for text, _ in rows} == {str}
    assert [line for _, line in rows] == list(range(1, data.count(b"\n") + 1))


def test_an_open_value_ends_with_its_file():
    """A quote that never closes takes its file's lines, not those of the next file."""
    assert read(b'1,a\n2,"b\n3,c\n', b"4,d\n", is_multi_line=True) == [(b"1,a", 1), (NEVER, 2), (NEVER, 3), (b"4,d", 1)]


def test_a_value_over_the_limit_is_rejected_line_by_line():
    """A quoted value that grows over the limit is rejected until it closes, with bounded memory."""
    data = b'1,"' + b"x\n" * 30 + b'end"\n2,b\n'
    rows = read(data, is_multi_line=True, row_bytes_max=20)
    assert rows[:-1] == [(NEVER, line) for line in range(1, 32)]
    assert rows[-1] == (b"2,b", 32)


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b'1,"say ""hi"" now"', ["1", 'say "hi" now']),
        (b'1,"say \\"hi\\" now"', ["1", 'say "hi" now']),
        (b'1,"C:\\temp"', ["1", "C:\\temp"]),
        (b'1,"x\\\\"', ["1", "x\\"]),
        (b'1,""', ["1", ""]),
        (b'1,""""', ["1", '"']),
        (b'"1" ,"a,b"', ["1", "a,b"]),
        (b'1,5" pipe', ["1", '5" pipe']),
        (b"\xef\xbb\xbf1,a", ["1", "a"]),
    ],
)
def test_quotes_are_read_exactly(data, values):
    """Doubled and escaped quotes, separators in quotes, quotes inside of plain values, a byte order mark."""
    [(text, line)] = read(data, size=1)
    assert line == 1
    assert split(text) == values


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"1,a,b", "3 values, and the schema has 2 columns"),
        (b"1", "1 values, and the schema has 2 columns"),
        (b"1,a,", "3 values"),
        (b'1,"a"b', "text follows the closing quote of a value"),
        (b'1, "a"', "a quote after a space; from.options.ignoreLeadingWhiteSpace: true reads it"),
        (b"1,caf\xe9", "not utf-8"),
        (b'1,"caf\xe9"', "not utf-8"),
    ],
)
def test_what_is_not_exact_is_rejected(data, why):
    """Too many or too few values, text around quotes and other encodings are rejected with the reason."""
    [(text, _)] = read(data)
    assert type(text) is str
    assert text.startswith(why)


def test_the_settings_of_the_spelling_have_an_effect():
    """Separators, quotes, escapes, comments, encodings and line ends are those of the settings."""
    assert read(b"1;'a;''b'", separator=";", quote="'") == [(b"1;'a;''b'", 1)]
    assert read(b"1\t\n\t\n", separator="\t") == [(b"1\t", 1), (b"\t", 2)]
    assert read(b'1||"a||b"', separator="||") == [(b'1||"a||b"', 1)]
    assert read(b'1,"a\n2,b', quote="") == [(b'1,"a', 1), (b"2,b", 2)]
    assert read(b"#x\n1,a\n#y\n", comment="#") == [(b"1,a", 2)]
    assert read(b'1,"a\n#b"\n', comment="#", is_multi_line=True) == [(b'1,"a\n#b"', 1)]
    assert read(b"1,caf\xe9", encoding="iso8859-1") == [("1,café".encode(), 1)]
    assert read(b'1, "a"', skips_spaces=True) == [(b'1,"a"', 1)]
    assert read(b'1,"C:\\dir\\"', escape="") == [(b'1,"C:\\dir\\"', 1)]
    assert read(b'1,"a\nb";2,c;3,d\ne;', line_separator=";") == [(b'1,"a\nb"', 1), (b"2,c", 2), (b'3,"d\ne"', 3)]
    assert read(b"1,a\n\n \n\r\n2,b\n") == [(b"1,a", 1), (b"2,b", 5)]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"1.25", None), (b"1.2500", None), (b"-1", None), (b"1e-2", None), (b"12.5E1", None),
        (b"", None), (b" 1.2 ", None),
        (b"abc", None),  # It does not fit its column, which Spark says.
        (b"1.255", "has more than 2 decimals"), (b"1e-3", "has more than 2 decimals"), (b'"1,5"', "is no number"),
        (b'"1,234.50"', "is no number"), (b"1e300000000", "out of the range"), (b"-1E-300000000", "out of the range"),
        (b"1e0300000000", "out of the range"), ("1e\u0663\u0660\u0660\u0660\u0660\u0660".encode(), "out of the range"),
        (b"1" * 1001, "out of the range"), (b"1e9999", None),
    ],
)  # fmt: skip
def test_a_decimal_is_neither_rounded_nor_read_without_its_comma(value, why):
    """Spark would make 1.26 of 1.255, and 15 of 1,5: such a row is rejected, unless a locale reads it."""
    [(text, _)] = read(b"7," + value, decimals=((1, 2),))
    assert (type(text) is bytes) == (why is None)
    assert why is None or why in text


@pytest.mark.parametrize(
    "value", ["1e300000000", "1E-99999", "1\u00d710^300000000", "1\u0623\u0633\u0663\u0660\u0660\u0660\u0660\u0660"]
)
def test_a_decimal_that_a_locale_reads_has_a_range_as_well(value):
    """A locale's own digits and sign for exponents are known, so that Spark computes no such number for hours."""
    for text, is_row in ((value, False), ("1.234.567,89", True), ("1e3", True)):
        [(row, _)] = read(f"7;{text}".encode(), decimals=((1, None),), separator=";")
        assert (type(row) is bytes) == is_row


@pytest.mark.parametrize(
    "value", [b"12", b"-1.5", b"1e308", b"", b"NaN", b"abc", b" .5 ", b"1e-400", b"+", b"dd", b"0" * 5000 + b"1"]
)
def test_a_double_that_is_one_or_fits_no_column_is_left_to_spark(value):
    """A number, the text NaN and a text that Spark rejects itself pass."""
    assert type(read(b"7," + value, doubles=((1, 1.7976931348623157e308),))[0][0]) is bytes


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"12d", "is no number"), (b"1.5F", "is no number"), (b"0x1p4", "is no number"), (b"1e3d", "is no number"),
        (b"9007199254740993", "has more digits than its column"),
        (b"1e309", "beyond the numbers of its column"), (b"-1e999999999", "beyond the numbers of its column"),
    ],
)  # fmt: skip
def test_a_double_is_read_as_it_is_written(value, why):
    """Spark would make 12 of 12d, as Java does, and the text Infinity of 1e309: such a row is rejected.

    So is a whole number that the column would round; a float has fewer digits than a double.
    """
    [(text, _)] = read(b"7," + value, doubles=((1, 1.7976931348623157e308),))
    assert why in text
    kinds = [type(read(b"7,16777217", doubles=((1, largest),))[0][0]) for largest in (3.4028234663852886e38, 1.7e308)]
    assert kinds == [str, bytes]


def test_a_number_is_no_date():
    """Spark takes four to seven digits for a year, as in 45292, and leaves out a text behind a date."""
    for value in (b"45292", b" 2024", b"202401", b"2024-05", b"+45292-01-01", b"-2024-01-01", b"12024-01-01 07:00"):
        for is_date in (True, False):
            assert "no date with a year of four digits" in read(b"7," + value, times=((1, is_date),))[0][0]
    for value in (b"2024-01-05 cancelled", b"2024-01-05T", b"2024-01-05T07"):
        assert "more than a date" in read(b"7," + value, times=((1, True),))[0][0]


def test_no_date_is_invented_and_no_character_is_lost():
    """A time without a date would get that of today, and Spark leaves out a NUL at the end of a quoted value."""
    for value in (b"12:30", b" T7:05:01Z", b"T12", b"\x0112:30"):
        assert "a time without a date" in read(b"7," + value, times=((1, False),))[0][0]
    for kept in (b"2026-01-01T12:30:00Z", b" 2026-1-1 ", b"2026-01-01 12:30", b"2026-01-01", b"none", b"", b"0"):
        for is_date in (True, False):
            assert read(b"7," + kept, times=((1, is_date),)) == [(b"7," + kept, 1)]
    assert "NUL" in read(b'7,"a\x00"')[0][0]
    assert read(b"7,a\x00") == [(b"7,a\x00", 1)]


def test_the_header_of_each_file_is_checked():
    """The first row of each file has the names; a file with others is rejected, all of it, over batches."""
    good, bad = b'\xef\xbb\xbf\n"id", note \n1,a\n', b"note,id\n1,a\n2,b\n"
    why = "the first row is not id,note"
    assert read(good, bad, good, has_header=True, size=2, skips_spaces=True) == [
        (b"1,a", 3), (why, 1), (why, 2), (why, 3), (b"1,a", 3),
    ]  # fmt: skip
    assert read(b"ID,note\n1,a\n", has_header=True)[0][0] == why


def test_random_values_written_by_another_program_are_read_back():
    """A thousand random tables, written by Python's csv module, are read as they were, in batches of any size."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(1000):
        rows = [["".join(chance.choices('a1 ,"\n\r;\\é', k=chance.randrange(6))) for _ in "ab"] for _ in range(4)]
        rows = [[f"k{first}", second] for first, second in rows]
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator=chance.choice(["\n", "\r\n"]), quoting=csv.QUOTE_ALL).writerows(rows)
        found = read(out.getvalue().encode(), size=chance.randrange(1, 5), escape="", is_multi_line=True)
        assert [split(text) for text, _ in found] == rows


@pytest.mark.parametrize(
    ("cell", "dialect"),
    [
        (b"." + b"0" * 1_000_000 + b"x", {"doubles": ((0, 1e308),)}),
        (b"." + b"0" * 1_000_000 + b"x", {"decimals": ((0, 2),)}),
        (b"1" * 1_000_000 + b"x", {"doubles": ((0, 1e308),), "decimals": ((0, 2),)}),
        (b"1" * 1_000_000 + b"d", {"doubles": ((0, 1e308),)}),
        (b" " * 150_000 + b'"x"', {"separator": " "}),
        (b"\t" * 150_000 + b'"x"', {"separator": "\t"}),
        (b'"' + b'\\"' * 300_000, {}),
    ],
    ids=lambda value: value[:8] if isinstance(value, bytes) else None,
)
def test_no_cell_takes_long(cell, dialect):
    """A cell of a megabyte is read in a time that grows with its length alone."""
    began_s = time.process_time()
    assert [line for _, line in read(cell, columns=("id",), **dialect)] == [1]
    assert time.process_time() - began_s < 15
