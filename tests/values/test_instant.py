"""Instants are compared across ISO 8601 texts and the times of message types."""

from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction

import msgpack
import pytest
from bson.datetime_ms import DatetimeMS
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.values.instant import instant_of, instant_of_text

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def exact(instant):
    """The exact number of seconds of an instant."""
    return instant.seconds + Fraction(int(instant.fraction or 0), 10 ** len(instant.fraction))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2024-02-29", "2024-02-29T00:00:00Z"),
        ("2024-02-29T10:00", "2024-02-29T10:00:00.000Z"),
        ("2024-02-29T10", "2024-02-29T10:00:00Z"),
        ("2024-02-29 10:00:00", "2024-02-29t10:00:00z"),
        ("2024-02-29T10:00:00,5Z", "2024-02-29T10:00:00.500Z"),
        ("2024-02-29T10:00:00+01", "2024-02-29T09:00:00Z"),
        ("2024-02-29T10:00:00-0130", "2024-02-29T11:30:00Z"),
        ("20240229T100000Z", "2024-02-29T10:00:00Z"),
        ("20240229T100000.25+0100", "2024-02-29T09:00:00.25Z"),
        ("2024-12-31T24:00:00Z", "2025-01-01T00:00:00Z"),
        ("2024-12-31T23:59:60Z", "2025-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00+14:00", "0001-01-01T01:00:00+15:00"),
        ("10:00+02:00", "08:00:00Z"),
        ("2024-02-29T10:00:00.000000000000000000001Z", "2024-02-29T11:00:00.0000000000000000000010+01:00"),
    ],
)
def test_texts_of_one_instant_are_equal(text, same):
    """Texts of one instant are equal in any precision, zone, format and separator."""
    assert instant_of_text(text) == instant_of_text(same) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2024",
        "20240229",
        "2024-2-9",
        "2024-02-30",
        "2024-13-01",
        "0000-01-01",
        "2024-02-29T",
        "2024-02-29x10:00",
        "2024-02-29T25:00Z",
        "2024-02-29T24:00:01Z",
        "2024-02-29T10:60Z",
        "2024-02-29T10:00:61Z",
        "2024-02-29T10:00:00.Z",
        "2024-02-29T10:00:00+24:00",
        "2024-02-29T10:00:00+01:60",
        "2024-02-29T10:00:00+01.00",
        "2024-02-29T10:00:00.5.5Z",
        "2024-02-29T10:00:00 Z",
        "2024-02-29T10:00:00Z ",
        "2024-02-29T1000:00Z",
        "2024-W01-1",
        "2024-W01-1T10:00:00Z",
        "10",
        "10Z",
        "1000Z",
        "2024-02-29T10:00:00Z[UTC]",
        "\u0662024-02-29",
        "2024-02-29T10:00:00.\u0661Z",
        "+2024-02-29",
    ],
)
def test_other_texts_are_no_instants(text):
    """A text with a wrong field, an extra character or another calendar is no instant."""
    assert instant_of_text(text) is None


@settings(derandomize=True)
@given(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)),  # noqa: DTZ001
    st.integers(-1439, 1439),
    st.text("0123456789", max_size=25),
    st.sampled_from("T "),
)
def test_a_text_names_the_instant_that_python_computes(moment, offset_min, fraction, separator):
    """Date, time, zone and a fraction of any length give the exact number of seconds since 1970."""
    zone = timezone(timedelta(minutes=offset_min))
    whole = moment.replace(microsecond=0, tzinfo=zone)
    sign, minutes = "-" if offset_min < 0 else "+", abs(offset_min)
    text = (
        f"{whole:%Y}".zfill(4) + f"{whole:-%m-%d}{separator}{whole:%H:%M:%S}" + (f".{fraction}" if fraction else "")
        + f"{sign}{minutes // 60:02}:{minutes % 60:02}"
    )  # fmt: skip
    since = (whole - EPOCH) // timedelta(seconds=1)
    instant = instant_of_text(text)
    assert exact(instant) == since + Fraction(int(fraction or 0), 10 ** len(fraction))
    assert instant.is_dated


@settings(derandomize=True)
@given(st.lists(st.text("0123456789", max_size=12), min_size=2, max_size=2))
def test_instants_of_one_second_are_ordered_by_their_fractions(fractions):
    """Instants are ordered as exact numbers, with any number of digits in their fractions."""
    one, other = (instant_of_text(f"2024-01-01T00:00:00{f and '.' + f}Z") for f in fractions)
    assert (one < other) == (exact(one) < exact(other))
    assert (one == other) == (exact(one) == exact(other))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "2024-01-01T00:00:00Z"),
        (datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC), "1969-12-31T23:59:59.5Z"),
        (DatetimeMS(-500), "1969-12-31T23:59:59.5Z"),
        (msgpack.Timestamp(-1, 500_000_001), "1969-12-31T23:59:59.500000001Z"),
        ("1970-01-01", "1970-01-01T00:00:00Z"),
    ],
    ids=repr,
)
def test_times_of_message_types_are_the_instants_that_their_texts_name(value, text):
    """A datetime, BSON's date beyond the calendar and MessagePack's timestamp equal an ISO 8601 text."""
    assert instant_of(value) == instant_of_text(text)


@pytest.mark.parametrize("value", [datetime(2024, 1, 1), date(2024, 1, 1), 5, None, b"2024-01-01", True], ids=repr)  # noqa: DTZ001
def test_other_values_are_no_instants(value):
    """A datetime without a zone names no instant, and neither does a value that is no time."""
    assert instant_of(value) is None
