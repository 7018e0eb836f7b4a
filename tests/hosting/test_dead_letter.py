"""A dead letter fits its topic, however large the rejected record is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import get_args

import pytest

from processor.hosting.output_limits import KEPT_BYTES_MAX, dead_letter, size_of
from processor.operate.letter_display import as_json
from processor.record import Record, RejectReason
from processor.wire.dead_letter import input_record, read_letter

MIB = 1024 * 1024
ROOT = Path(__file__).parents[2]
SOURCE = "orders.publish/3/17"


def letter_of(record: Record, bytes_max: int = 16 * MIB, detail: str = "no"):
    """Return the dead letter as it is written and as it is read."""
    key, value, headers = dead_letter(record, "too_large", detail, SOURCE, bytes_max)
    assert size_of((key, value, headers)) <= bytes_max
    return read_letter(3, Record(key, value, headers, 5, 0))


def test_a_record_that_fits_is_kept_as_it_was() -> None:
    """A record that fits is complete in its dead letter, also where its publisher used our header names."""
    theirs = [("dlq_bytes", b"7"), ("dlq_sha256", b"x"), ("dlq_truncated", b"true")]
    letter = letter_of(Record(b"k", b"x" * 15 * MIB, theirs, 17, 0))
    assert letter.is_whole
    assert (letter.record.key, len(letter.record.value or b"")) == (b"k", 15 * MIB)
    assert letter.headers == theirs


def test_of_a_large_value_the_first_mebibyte_is_kept() -> None:
    """The dead letter of a large value has its beginning, size and checksum; key and headers stay."""
    value = bytes(range(256)) * 80_000
    letter = letter_of(Record(b"k", value, [("trace", b"1")], 17, 0))
    assert letter.record.value == value[:KEPT_BYTES_MAX]
    assert (letter.whole_bytes, letter.sha256) == (len(value), hashlib.sha256(value).hexdigest())
    assert (letter.record.key, letter.headers, letter.source) == (b"k", [("trace", b"1")], SOURCE)
    assert '"dlq_truncated":true' in as_json(letter)
    whole = Record(b"k", value, [("trace", b"1")], 17, 0)
    assert input_record(letter, "orders.dlq", whole) == (b"k", value, [("trace", b"1"), ("replay_of", SOURCE.encode())])


@pytest.mark.parametrize("bytes_max", [16 * 1024, 100_000, MIB, 17 * MIB])
@pytest.mark.parametrize("key_bytes", [1, 18 * MIB])
@pytest.mark.parametrize("header_bytes", [0, 18 * MIB])
@pytest.mark.parametrize("value_bytes", [None, 0, 18 * MIB])
def test_no_part_of_a_record_makes_it_too_large(
    bytes_max: int, key_bytes: int, header_bytes: int, value_bytes: int | None
) -> None:
    """Large headers are left out and a large key is cut, as the detail mentions; `letter_of` checks the size."""
    headers = [("blob", b"h" * header_bytes)] if header_bytes else None
    value = None if value_bytes is None else b"v" * value_bytes
    letter = letter_of(Record(b"k" * key_bytes, value, headers, 17, 0), bytes_max, "d" * 100_000)
    assert (letter.detail or "").count("headers are left out") == (header_bytes > 0)
    assert (letter.detail or "").count("its key") == (key_bytes > 1)
    assert (letter.record.value is None) == (value_bytes is None)
    assert letter.is_whole == (key_bytes == 1 and not header_bytes and not value_bytes)


def test_many_small_headers_are_counted() -> None:
    """The bytes of Kafka's format around each header are part of the size."""
    letter = letter_of(Record(b"k", b"v", [("a", None)] * 100_000, 17, 0), 64 * 1024)
    assert letter.headers == []
    assert not letter.is_whole


def test_the_product_rejects_records_for_its_own_reasons_only() -> None:
    """Every reason in the code is in `RejectReason`: types accept any word, for the sake of plug-ins."""
    reasons = set()
    for folder in ("processor", "spark_integration"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "docs" not in file.parts:
                reasons |= set(re.findall(r'RecordRejected\(\s*"([^"]*)"', file.read_text(encoding="utf-8")))
    assert reasons
    assert reasons <= set(get_args(RejectReason))
