"""Leased records in Kafka's record batches: kafka-python writes the batches, and reads them as the reference."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecordsBuilder

from processor.queues.transport.record_batches import AcquiredRange, read_acquired
from processor.wire.headers import UNREADABLE_NAME
from tests.endtoend.raw_batch import raw_batch, raw_record

HEAD_SIZE = 61
ATTRIBUTES_AT = 21


def batch(base: int, values: list[bytes | None], compression: int = 0, headers=()) -> bytes:
    """A batch whose first record has the offset `base`."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=1 << 20)
    for at, value in enumerate(values):
        builder.append(timestamp=1000 + at, key=b"k%d" % at, value=value, headers=list(headers))
    builder.close()
    data = bytearray(builder.buffer())
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def marker(base: int) -> bytes:
    """The marker of a transaction: a control batch with one record."""
    data = bytearray(batch(base, [b"\0\0\0\0\0\0"]))
    data[ATTRIBUTES_AT + 1] |= 0x20
    return bytes(data)


def offsets(acquired) -> list[tuple[int, int]]:
    """The offset and the deliveries of each record."""
    return [(record.offset, deliveries) for record, deliveries in acquired.records]


def test_the_leased_records_of_a_batch_come_with_all_they_have():
    """Key, value, headers, time and number of deliveries; those that others hold are stepped over."""
    data = batch(10, [b"a", None, b"c"], headers=[("h", b"1"), ("h", None)])
    acquired = read_acquired(data, [AcquiredRange(10, 10, 1), AcquiredRange(11, 11, 3)])
    assert [(record.key, record.value, record.timestamp_ms, n) for record, n in acquired.records] == [
        (b"k0", b"a", 1000, 1),
        (b"k1", None, 1001, 3),
    ]
    assert acquired.records[0][0].headers == [("h", b"1"), ("h", None)]
    assert (acquired.gaps, acquired.unseen) == ([], [])


def test_a_lone_marker_is_a_gap():
    """A fetch with the marker of a transaction alone has no record, and an offset that has to be acknowledged."""
    acquired = read_acquired(marker(7), [AcquiredRange(7, 7, 1)])
    assert (acquired.records, acquired.gaps, acquired.unseen) == ([], [(7, 7)], [])


def test_compacted_offsets_are_gaps_and_those_behind_the_last_batch_are_unseen():
    """Offsets without a record before the end of the data are gaps; the rest did not come, and is given back."""
    data = batch(0, [b"a"]) + marker(1) + batch(5, [b"b"])
    acquired = read_acquired(data, [AcquiredRange(0, 9, 1)])
    assert offsets(acquired) == [(0, 1), (5, 1)]
    assert acquired.gaps == [(1, 4)]
    assert acquired.unseen == [(6, 9)]


def test_a_batch_that_is_cut_off_is_left_to_a_later_fetch():
    """Brokers cut the last batch at the limit of bytes."""
    data = batch(0, [b"a"]) + batch(1, [b"b"])[:-1]
    acquired = read_acquired(data, [AcquiredRange(0, 1, 1)])
    assert (offsets(acquired), acquired.gaps, acquired.unseen) == ([(0, 1)], [], [(1, 1)])


def test_a_header_name_that_is_not_utf_8_does_not_end_the_batch():
    """It is replaced, as other readers replace it, and a name ends at its first NUL; values and later records stay."""
    headers = [(b"a", b"1"), (b"\xff\xfe", b"2"), (b"c\0\xff", None)]
    data = raw_batch(raw_record(0, b"k", b"v", headers) + raw_record(1, b"k", b"w"), 2)
    first, second = read_acquired(data, [AcquiredRange(0, 1, 1)]).records
    (one, bad, cut) = first[0].headers or []
    assert (one, UNREADABLE_NAME in bad[0], bad[1], cut) == (("a", b"1"), True, b"2", ("c", None))
    assert (second[0].value, second[0].headers) == (b"w", None)


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_compressed_batches_are_read(compression):
    """Gzip, Snappy, LZ4 and Zstandard."""
    acquired = read_acquired(batch(0, [b"x" * 1000] * 3, compression), [AcquiredRange(0, 2, 1)])
    assert [record.value for record, _ in acquired.records] == [b"x" * 1000] * 3


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_a_damaged_batch_is_told_apart_from_gaps_and_the_next_one_is_read(compression):
    """Its leased offsets are returned with the reason; those behind it come as records."""
    data = bytearray(batch(5, [b"x" * 100] * 3, compression))
    data[HEAD_SIZE:] = b"\x7f" * (len(data) - HEAD_SIZE)
    acquired = read_acquired(bytes(data) + batch(8, [b"good"]), [AcquiredRange(6, 9, 1)])
    ((first, last, why),) = acquired.unreadable
    assert (first, last) == (6, 7)
    assert re.search(r"at offset 5.* cannot be read", why)
    assert (offsets(acquired), acquired.gaps, acquired.unseen) == ([(8, 1)], [], [(9, 9)])


@given(st.data())
def test_any_leases_of_any_batches(data):
    """Records, gaps and unseen offsets are just the leased offsets, each once, and the records are those of the log."""
    log, records, at = b"", {}, 0
    for size in data.draw(st.lists(st.integers(0, 4), max_size=5)):
        at += data.draw(st.integers(0, 2))
        if not size:
            log += marker(at)
            at += 1
            continue
        values = [b"%d" % (at + n) for n in range(size)]
        log += batch(at, values, data.draw(st.sampled_from([0, 1])))
        records |= {at + n: value for n, value in enumerate(values)}
        at += size
    leased = data.draw(st.sets(st.integers(0, at + 2)))
    acquired = read_acquired(log, [AcquiredRange(offset, offset, 1) for offset in sorted(leased)])
    found = {record.offset: record.value for record, _ in acquired.records}
    assert found == {offset: value for offset, value in records.items() if offset in leased}
    others = [offset for first, last in acquired.gaps + acquired.unseen for offset in range(first, last + 1)]
    assert sorted([*found, *others]) == sorted(leased)
    assert all(first >= at for first, _ in acquired.unseen)
