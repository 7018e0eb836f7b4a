"""The message type BSON reads and writes documents of pymongo's types."""

from datetime import UTC, datetime, timedelta, timezone

import bson
import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec.bson_type import BsonCodec
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver
from tests.codec.specimens import refused

CODEC = BsonCodec()


def test_every_type_is_written_again_byte_for_byte():
    """Every BSON type is written again byte for byte.

    Among them are short and long integers, dates beyond Python's, decimals with their zeros and legacy UUIDs.
    """
    value = {
        "i": 1, "l": bson.Int64(1), "d": bson.Decimal128("1.00"), "o": bson.ObjectId(b"0" * 12),
        "far": bson.DatetimeMS(2**60), "old": bson.Binary(b"0" * 16, 3), "re": bson.Regex("^a", "im"),
        "t": bson.Timestamp(1, 2), "min": bson.MinKey(), "code": bson.Code("f", {"x": 1}), "ref": bson.DBRef("c", 1),
        "f": -0.0, "n": None, "b": b"\0",
    }  # fmt: skip
    data = bson.encode(value)
    assert CODEC.encode(CODEC.decode(data)) == data


def test_dates_are_utc_and_of_milliseconds():
    """A date is read back as the same instant in UTC; one of microseconds, or without a time zone, is refused."""
    when = datetime(2026, 1, 2, 3, 4, 5, 678_000, timezone(timedelta(hours=2)))
    back = CODEC.decode(CODEC.encode({"t": when}))["t"]
    assert back == when
    assert back.tzinfo is UTC
    for other in (when.replace(microsecond=678_999), when.replace(tzinfo=None)):
        with pytest.raises(TypeError, match=r"^/a/1: .* would be read back as datetime"):
            CODEC.encode({"a": [when, other]})


@pytest.mark.parametrize("key", [7, bson.Int64(7)])
def test_both_integers_make_a_key(key):
    """Both BSON integer types form the same key: a driver's language decides which one it sends."""
    topic = TopicConfig(message_type="bson")
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    driver.pipe_batch([("7", {"id": key, "a": 1}, None), ("7", {"id": key, "b": bson.Int64(2)}, None)])
    assert not driver.pending_output("dlq")
    assert driver.pending_output("sow")[-1].value == bson.encode({"id": key, "a": 1, "b": bson.Int64(2)})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x05", "not enough data"),
        (bson.encode({"a": "x"}) + b"1", "of 15 bytes"),
        (bson.encode({"a": "x"}).replace(b"x", b"\xff"), "invalid start byte"),
        (b"\x0b\0\0\0\x7ea\0\0\0\0\0", "for fieldname 'a'"),
        (b"\xff\xff\xff\x7f" + bson.encode({})[4:], "of 5 bytes"),
    ],
    ids=repr,
)
def test_bad_bytes_are_refused(data, why):
    """Bad bytes are rejected with the parser's message."""
    assert refused(CODEC, data).startswith("undecodable: not BSON: ")
    assert why in refused(CODEC, data)


def test_a_valid_document_of_thousands_of_levels_is_too_deep():
    """A valid document of thousands of levels is rejected as `too_deep` without exhausting the stack."""
    data = b"\x05\0\0\0\0"
    for _ in range(5000):
        data = (len(data) + 8).to_bytes(4, "little") + b"\x03a\0" + data + b"\0"
    assert refused(CODEC, data).startswith("too_deep: ")


@pytest.mark.parametrize("value", [{"a": 2**64}, {"a": {1: 2}}, {"a\0": 1}, {"a": object()}, [1], {"a": "\ud800"}])
def test_an_unsupported_value_is_a_type_error(value):
    """A value that BSON cannot represent is a TypeError that names the problem."""
    with pytest.raises(TypeError, match="BSON"):
        CODEC.encode(value)
