"""The headers of SOW records that a restore takes over, and those that it refuses before a store fails on them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.record import Record
from processor.runtime.recovery.log_replay import EncodedHeads
from processor.store.layout import decode_record, encode_record
from processor.wire.record_headers import stored_from

LARGEST = [
    ("version", b"9223372036854775807"),
    ("expires_at", b"9223372036854775807"),
    ("source", b"orders.publish/0/9223372036854775807"),
    ("expiration", b"x" * 65_535),
]


def test_the_largest_headers_come_back_from_a_store():
    """The largest headers that a restore takes over can be written to a store and read back."""
    stored = stored_from(Record(b"7", b"{}", LARGEST, 0, 0))
    assert decode_record(encode_record(stored)) == stored


@pytest.mark.parametrize(
    "header",
    [
        ("version", b"9223372036854775808"),
        ("version", b"9" * 5000),
        ("version", b"-9223372036854775809"),
        ("version", b"one"),
        ("expires_at", b"9223372036854775808"),
        ("source", b"orders.publish/0/9223372036854775808"),
        ("expiration", b"x" * 65_536),
        ("expiration", b"1\x000"),
        ("group_stamps", b"x"),
    ],
    ids=lambda header: f"{header[0]}, {len(header[1])} bytes",
)
def test_headers_that_no_worker_wrote_are_refused(header):
    """They are refused with the record's headers in the error, before a store fails to pack them."""
    with pytest.raises(ValueError, match=r"none that a worker writes: .*version"):
        stored_from(Record(b"7", b"{}", [*LARGEST, header], 0, 0))


NAMES = st.sampled_from(["version", "expires_at", "source", "expiration", "group_stamps", "kind", "anything"])
TEXTS = st.one_of(st.none(), st.integers(0, 2**64).map(b"%d".__mod__), st.binary(max_size=4), st.just(b"t/0/7"))


@given(st.lists(st.lists(st.tuples(NAMES, TEXTS), max_size=4), max_size=6), st.binary(max_size=20))
def test_heads_are_what_encoding_puts_before_a_value(all_headers, value):
    """Encoded heads equal the encoding of records for any headers, also the second time, and notice every expiry."""
    heads = EncodedHeads()
    expires = False
    for headers in all_headers * 2:
        try:
            stored = stored_from(Record(b"7", value, headers, 0, 0))
        except ValueError:
            with pytest.raises(ValueError, match="none that a worker writes"):
                heads[tuple(headers)]
            continue
        expires = expires or stored.expires_at_ms > 0
        assert heads[tuple(headers)] + value == encode_record(stored)
    assert heads.expires is expires
