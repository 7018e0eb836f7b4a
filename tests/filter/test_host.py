# ruff: noqa: RUF001 - letters and digits that look alike are what is tested
"""Results of filters do not depend on the host: its zone, locale, C library or version of Python."""

import hashlib
import locale
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from processor.errors import FilterError
from processor.filter import compile_expression, compile_filter
from processor.filter.text_functions import WHITE_SPACE, capitals, small_letters, without_case

EVERY_CHARACTER = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))


def value(text, **record):
    """The value of an expression."""
    return compile_expression(text).value(record)


def test_case_changes_one_letter_for_one():
    """A change of case keeps the number of characters and the place of each, for every character and in any context."""
    for change in (capitals, small_letters, without_case):
        changed = change(EVERY_CHARACTER)
        assert len(changed) == len(EVERY_CHARACTER)
        sample = EVERY_CHARACTER[:0x3000] + EVERY_CHARACTER[0x1F00:0x2000][::-1]
        assert change(sample) == "".join(map(change, sample))
    assert without_case(capitals(EVERY_CHARACTER)) == without_case(small_letters(EVERY_CHARACTER))


def test_case_is_that_of_unicode_14_in_every_python():
    """The case of all characters is the same in every version of Python, whose Unicode differs."""
    both = (capitals(EVERY_CHARACTER) + small_letters(EVERY_CHARACTER)).encode()
    assert hashlib.sha256(both).hexdigest() == CASE_OF_UNICODE_14


CASE_OF_UNICODE_14 = "2312c42489843c7c4ca00d5d15e754ac5680111cee22a8aafbb1b332a5a659f6"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UPPER('ß ŉ ﬁ ᾳ ı ǆ ǅ ſ ÿ')", "ß ŉ ﬁ ᾳ I Ǆ Ǆ S Ÿ"),
        ("LOWER('İ ẞ Σ ΟΔΟΣ Ǆ K Å')", "İ ß σ οδοσ ǆ k å"),
        ("INSTR_I('xİyß', 'ß')", 4),
        ("INSTR_I('straße', 'SS')", 0),
        ("STREQUAL_I('ΟΔΟς', 'οδοΣ')", True),
        ("STREQUAL_I('ſtop', 'STOP')", True),
        ("STREQUAL_I('ı', 'i')", True),
        ("STREQUAL_I('İ', 'i')", False),
        ("LENGTH(UPPER('ﬃ'))", 1),
        ("TRIM('\u3000\u2003x\u200b ')", "x\u200b"),
        ("'١٢' + 0 IS NAN", True),
        ("'1_0' + 0 IS NAN", True),
        ("'１２' + 0 IS NAN", True),
        ("'0x10' + 0 IS NAN", True),
        ("'inf' + 0 IS NAN", True),
        ("CONCAT(1e22, ' ', 1e-7, ' ', 0.1 + 0.2, ' ', 1e16)", "1e+22 1e-07 0.30000000000000004 1e+16"),
        ("POWER(-2, 3)", -8.0),
        ("POWER(-10, 999) < -1e308", True),
        ("POWER(2, 0.5)", 1.4142135623730951),
        ("POWER(0, -1) IS NAN", True),
        ("POWER(1.0000001, 1e300) > 1e308", True),
        ("POWER(0.5, 1e300)", 0.0),
        ("EXP(1)", 2.718281828459045),
        ("EXP(-1e300)", 0.0),
        ("LN(10)", 2.302585092994046),
        ("LOG10(2)", 0.3010299956639812),
        ("LOG2(10)", 3.321928094887362),
        ("LOG2(1125899906842624)", 50.0),
        ("LN(0) IS NAN AND LN(-1) IS NAN AND SQRT(-1) IS NAN", True),
        ("ROUND(0.5) + ROUND(1.5) + ROUND(2.675, 2)", 5.68),
    ],
)
def test_an_odd_input_has_its_documented_result(text, expected):
    """Letters without case pairs, digits of other scripts, and results beyond floats have one defined result."""
    result = value(text)
    assert result == expected
    assert type(result) is type(expected)


MOMENTS = [0, -1, 1e9, 1.7e9 + 0.25, -6e10, 2.5e11, *[86_400 * 29 * number + 3_601.5 for number in range(-40, 400, 3)]]
SAME_IN_C = ("%a %A %b %B %d %H %I %j %m %M %p %S %w %u %y %f %%", "%U %W %V %G %z %Z %D %F %T %R %e %h %n%t")


def test_times_are_written_as_c_writes_them_in_english():
    """`STRFTIME` writes what the C library writes in its own locale, in UTC."""
    for seconds in MOMENTS:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        if moment.year >= 1000:  # For earlier years C libraries differ.
            for form in SAME_IN_C:
                assert value(f"STRFTIME('{form}', {seconds!r})") == moment.strftime(form)
    assert value("STRFTIME('%Y %C %G', -50000000000)") == "0385 03 0385"
    assert value("STRFTIME('%s', 1700000000.9)") == "1700000000"
    assert value("STRFTIME('%c|%x|%X|%r', 0)") == "Thu Jan  1 00:00:00 1970|01/01/70|00:00:00|12:00:00 AM"


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%dT%H:%M:%S.%f%z",
        "%d %B %Y %I:%M:%S.%f %p",
        "%a, %d %b %Y %H:%M:%S.%f",
        "%j %Y %T.%03f",
        "%G-W%V-%u %H%M%S%f",
        "%D %T.%f",
        "%e. %b %Y %X.%f %Z",
    ],
)
def test_a_time_that_was_written_is_read_again(form):
    """`STRPTIME` reads the time that `STRFTIME` wrote in the same format."""
    for seconds in MOMENTS:
        if "%D" not in form or -31_536_000 <= seconds < 3_124_224_000:  # Two digits of a year stand for 1969 to 2068.
            read = value(f"STRPTIME(STRFTIME('{form}', {seconds!r}), '{form}')")
            assert read == (int(seconds * 1000) / 1000 if "%03f" in form else seconds), (form, seconds)


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("2024-02-30", "%Y-%m-%d", None),
        ("٢٠٢٤-٠١-٠١", "%Y-%m-%d", None),
        ("1 mai 2024", "%d %b %Y", None),
        ("1 MAY 2024", "%d %b %Y", 1714521600.0),
        ("2024-05-01 CEST", "%Y-%m-%d %Z", None),
        ("2024-05-01 utc", "%Y-%m-%d %Z", 1714521600.0),
        ("2024-05-01 +02:00", "%Y-%m-%d %z", 1714514400.0),
        ("2024-05-01 -0330", "%Y-%m-%d %z", 1714534200.0),
        ("2024-05-01x", "%Y-%m-%d", None),
        ("24:00", "%H:%M", None),
        ("366 2023", "%j %Y", None),
        ("1700000000", "%s", 1700000000.0),
        ("2024 2024", "%Y %Y", None),
        ("2024", "%Y %", None),
        ("W01 2024", "W%V %G", None),
        ("12 AM", "%I %p", -2208988800.0),
    ],
)
def test_a_text_is_read_as_a_time_in_english_and_utc(text, form, expected):
    """`STRPTIME` reads names in English and zones by their offset; no zone of the host has a name."""
    assert compile_expression("STRPTIME(/text, /form)").value({"text": text, "form": form}) == expected


def test_an_unknown_directive_is_an_error_in_a_filter_and_null_in_a_record():
    """A directive that C libraries treat in different ways is refused, with its place."""
    for text in ("STRFTIME('%Y %-d', 0)", "STRFTIME('%E', 0)", "STRFTIME('%', 0)", "STRPTIME(/a, '%U %Y')"):
        with pytest.raises(FilterError, match=r"column 1[04]: the format has '%[-EU]?', which is no directive"):
            compile_filter(f"{text} = 'x'")
    assert value("STRFTIME(/form, 0)", form="%-d") is None
    assert value("STRPTIME('1', /form)", form="%-d") is None
    assert value("STRFTIME(/form, 0)", form="%d" * 33) is None


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kathmandu"])
def test_the_zone_and_the_locale_of_the_host_change_nothing(zone, monkeypatch):
    """Results are the same in another time zone and in every locale that is installed."""
    texts = [
        "STRFTIME('%s %Z %z %c %A %p', 1700000000)",
        "STRPTIME('Tuesday 14 November 2023 10:13 PM', '%A %d %B %Y %I:%M %p')",
        "UPPER('iıßi')",
        "CONCAT(1.5, 1e21)",
        "'1,5' + 0 IS NAN",
        "UNIX_TIMESTAMP() > 0",
    ]
    expected = [value(text) for text in texts]
    assert expected[:2] == ["1700000000 UTC +0000 Tue Nov 14 22:13:20 2023 Tuesday PM", 1699999980.0]
    monkeypatch.setenv("TZ", zone)
    before = locale.setlocale(locale.LC_ALL)
    time.tzset()
    try:
        for name in ("tr_TR.UTF-8", "de_DE.UTF-8", "fr_FR.UTF-8", "C"):
            try:
                locale.setlocale(locale.LC_ALL, name)
            except locale.Error:
                continue
            assert [value(text) for text in texts] == expected
    finally:
        locale.setlocale(locale.LC_ALL, before)
        monkeypatch.undo()
        time.tzset()


def test_a_process_of_another_locale_has_the_same_results():
    """A process with a Turkish locale and another zone in its environment evaluates as this one does."""
    code = (
        "from processor.filter import compile_expression as c;"
        "print(ascii([c(t).value({}) for t in [\"UPPER('iı')\", \"LOWER('Iİ')\", \"STRFTIME('%c %Z', 0)\"]]))"
    )
    shown = []
    for more in ({}, {"TZ": "America/Los_Angeles", "LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"}):
        command = [sys.executable, "-X", "utf8", "-c", code]
        shown.append(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | more).stdout)
    assert shown[0] == shown[1]


def test_white_space_is_that_of_python():
    """The white space that is taken away is all that Unicode 14 has."""
    assert {character for character in EVERY_CHARACTER if character.isspace()} == set(WHITE_SPACE)
