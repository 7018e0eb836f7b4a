"""What a restore takes over of a SOW record, and what it refuses before a store trips over it."""

import pytest

from processor.record import Record
from processor.runtime.sow_record import stored_from
from processor.state.layout import decode_record, encode_record

LARGEST = [
    ("version", b"9223372036854775807"),
    ("expires_at", b"9223372036854775807"),
    ("source", b"orders.publish/0/9223372036854775807"),
    ("correlation_id", b"x" * 65_535),
]


def test_the_largest_headers_come_back_from_a_store():
    """What is taken over can be written."""
    stored = stored_from(Record(b"7", b"{}", LARGEST, 0, 0))
    assert decode_record(encode_record(stored)) == stored


@pytest.mark.parametrize(
    "header",
    [
        ("version", b"9223372036854775808"),
        ("version", b"9" * 5000),
        ("version", b"one"),
        ("expires_at", b"9223372036854775808"),
        ("source", b"orders.publish/0/9223372036854775808"),
        ("correlation_id", b"x" * 65_536),
    ],
    ids=lambda header: f"{header[0]}, {len(header[1])} bytes",
)
def test_headers_that_no_worker_wrote_are_refused(header):
    """As the error that names the record, not as one of packing bytes."""
    with pytest.raises(ValueError, match=r"larger than a worker writes|invalid literal|integer string"):
        stored_from(Record(b"7", b"{}", [*LARGEST, header], 0, 0))
