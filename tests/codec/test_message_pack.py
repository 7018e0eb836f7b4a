"""The message type MessagePack keeps its own types and rejects false lengths."""

import tracemalloc

import msgpack
import pytest

from processor.codec.message_pack import MsgpackCodec
from tests.codec.specimens import refused

CODEC = MsgpackCodec()


def test_extensions_timestamps_and_binary_are_written_again_byte_for_byte():
    """Extensions, timestamps and binary values in their short forms are written again byte for byte."""
    data = msgpack.packb({"e": msgpack.ExtType(5, b"x"), "t": msgpack.Timestamp(1, 2), "b": b"\xff", "n": None})
    assert CODEC.encode(CODEC.decode(data)) == data


def test_a_float_of_32_bits_keeps_its_value():
    """A float of 32 bits keeps its value and is written with 64."""
    value = CODEC.decode(b"\x81\xa1a\xca\x3d\xcc\xcc\xcd")
    assert value == {"a": 0.10000000149011612}
    assert CODEC.decode(CODEC.encode(value)) == value


def test_the_last_of_two_members_with_one_name_counts():
    """The last of two members with the same name counts (rule 11 of merging)."""
    assert CODEC.decode(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}


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
    assert refused(CODEC, data).startswith("undecodable: not MessagePack: ")
    assert why in refused(CODEC, data)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"], ids=bytes.hex)
def test_a_false_length_costs_no_memory(head):
    """A false length of four thousand million items costs no memory, however often it occurs."""
    data = (head + b"\xff\xff\xff\xff") * 1000
    tracemalloc.start()
    try:
        assert "undecodable" in refused(CODEC, data)
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
        CODEC.encode(value)
