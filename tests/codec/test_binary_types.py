"""Messages of BSON and MessagePack."""

import tracemalloc
from datetime import UTC, datetime, timedelta, timezone

import bson
import msgpack
import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec.bson_type import BsonCodec
from processor.codec.contract import CodecOptions
from processor.codec.json_value import to_json_line
from processor.codec.message_pack import MsgpackCodec
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


WRAPPED = {
    "references": lambda value: bson.DBRef("x", value),
    "references with fields": lambda value: bson.DBRef("x", 1, extra=value),
    "code": lambda value: bson.Code("", {"a": value}),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_documents_in_references_and_code_count_as_levels(wrapped):
    """References and code that have one another in them are read up to `max_depth` levels, and not beyond."""
    codec = BsonCodec(CodecOptions(max_depth=20))
    messages = [{"a": 1}]
    for _ in range(25):
        messages.append({"a": WRAPPED[wrapped](messages[-1]["a"])})
    for levels, value in enumerate(messages, 1):
        data = bson.encode(value)
        if levels <= 20:
            assert codec.decode(data) == codec.decode(codec.encode(value)) == value
        else:
            assert refused(codec, data).startswith("too_deep: ")
            with pytest.raises(TypeError, match="nested deeper"):
                codec.encode(value)


def test_a_stored_reference_of_any_depth_is_shown():
    """A record that was stored with references of thousands of levels is shown, with the type in place of the value."""
    value = {"a": 1}
    for _ in range(5000):
        value = {"a": bson.DBRef("x", value["a"])}
    assert to_json_line(value) == '{"a":"a DBRef that is nested too deep"}'


@pytest.mark.parametrize("value", [{"a": 2**64}, {"a": {1: 2}}, {"a\0": 1}, {"a": object()}, [1], {"a": "\ud800"}])
def test_a_value_that_bson_lacks_is_a_type_error(value):
    """A value that BSON cannot represent is a TypeError that names the problem."""
    with pytest.raises(TypeError, match="BSON"):
        CODEC.encode(value)


PACK = MsgpackCodec()


def test_extensions_timestamps_and_binary_are_written_again_byte_for_byte():
    """Extensions, timestamps and binary values in their short forms are written again byte for byte."""
    data = msgpack.packb({"e": msgpack.ExtType(5, b"x"), "t": msgpack.Timestamp(1, 2), "b": b"\xff", "n": None})
    assert PACK.encode(PACK.decode(data)) == data


def test_a_float_of_32_bits_keeps_its_value():
    """A float of 32 bits keeps its value and is written with 64."""
    value = PACK.decode(b"\x81\xa1a\xca\x3d\xcc\xcc\xcd")
    assert value == {"a": 0.10000000149011612}
    assert PACK.decode(PACK.encode(value)) == value


def test_the_last_of_two_members_with_one_name_counts():
    """The last of two members with the same name counts (rule 11 of merging)."""
    assert PACK.decode(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x82\xa1a\x01\xa1b", "incomplete input, at byte 6"),
        (b"\x81\xa1a\xc1", "at byte 3"),
        (b"\x81\xa1a\xa2\xff\xff", "invalid start byte, at byte 3"),
        (b"\x01\x02", "one item ends at byte 1"),
        (b"\x81\x01\x02", "the map key 1 is no text"),
        (b"\x81\xc4\x01a\x02", "the map key b'a' is no text"),
        (b"\x81\x90\x01", "the map key [] is no text"),
        (b"\xd6\xff\x00", "at byte 0"),
    ],
    ids=repr,
)
def test_bad_bytes_are_refused_with_their_place(data, why):
    """Bad bytes are rejected with the byte at which the item begins, or with the map key."""
    assert refused(PACK, data).startswith("undecodable: not MessagePack: ")
    assert why in refused(PACK, data)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"], ids=bytes.hex)
def test_a_false_length_costs_no_memory(head):
    """A false length of four thousand million items costs no memory, however often it occurs."""
    data = (head + b"\xff\xff\xff\xff") * 1000
    tracemalloc.start()
    try:
        assert "undecodable" in refused(PACK, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("value", "why"), [
    ({"a": 2**64}, "MessagePack cannot write it"), ({"a": [{1: 2}]}, "the map key 1 is no text"),
    ({"a": "\ud800"}, "surrogates"), ({"a": 1j}, "complex"),
])  # fmt: skip
def test_an_unsupported_value_is_a_type_error(value, why):
    """Values that MessagePack cannot represent are a TypeError.

    They are an int beyond 64 bits, a key that is no text and half a surrogate pair.
    """
    with pytest.raises(TypeError, match=why):
        PACK.encode(value)
