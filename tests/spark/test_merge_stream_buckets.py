"""Buckets of records, against a dict, and with the calamities of a state store."""

from __future__ import annotations

import os
import pickle
import random

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from processor.errors import Stop
from spark_integration.merge.streaming.buckets import BUCKET_BYTES, Buckets, bucket_of, entries_in


class Rows:
    """A map state in memory, which counts the rows that are read and written."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.read = self.written = 0

    def get_many(self, keys):
        """The values of keys."""
        self.read += len(keys)
        return {key: self.rows.get(key) for key in keys}

    def put_many(self, changes):
        """Set or remove values."""
        self.written += len(changes)
        for key, value in changes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def has_rows(self):
        """Return whether there is a value."""
        return bool(self.rows)


def _entry(rng):
    return rng.randrange(9), rng.randbytes(rng.choice([0, 10, 200, 200, 9000])), rng.randrange(3), -1, b"", 0


@pytest.mark.parametrize("seed", range(4))
def test_buckets_answer_as_a_dict(seed) -> None:
    """Entries are set, read and removed by key in any number of micro-batches, while buckets are added."""
    print("seed", seed)
    rng = random.Random(seed)
    rows, former, expected = Rows(), Rows(), {}
    for _ in range(25):
        buckets = Buckets(rows, former)
        keys = [b"%d" % rng.randrange(2000) for _ in range(rng.choice([1, 30, 400]))]
        changes = {key: rng.choice([None, _entry(rng), _entry(rng), _entry(rng)]) for key in keys}
        if rng.random() < 0.5:  # A key may be written unread.
            assert dict(buckets.get_many(keys)) == {key: expected.get(key) for key in keys}
        buckets.put_many(changes)
        expected.update(changes)
        keys = [b"%d" % number for number in range(2000)]
        assert dict(buckets.get_many(keys)) == {key: expected.get(key) for key in keys}
    names = {int(name) for name in rows.rows if name != b"size"}
    assert len(names) > 30
    sizes = [len(rows.rows[b"%d" % name]) for name in names]
    assert sum(sizes) / len(sizes) < 2 * BUCKET_BYTES


def test_number_of_rows_follows_the_keys_of_a_micro_batch() -> None:
    """A micro-batch of all keys reads and writes many keys in each row, and one of a key no more than two rows."""
    rows, former = Rows(), Rows()
    entries = {b"%d" % number: (1, b"x" * 200, 0, -1, b"", 0) for number in range(10_000)}
    Buckets(rows, former).put_many(entries)
    rows.read = rows.written = 0
    buckets = Buckets(rows, former)
    buckets.get_many(entries)
    buckets.put_many(entries)
    assert rows.read < 1000
    assert rows.written < 1000
    rows.read = rows.written = 0
    Buckets(rows, former).put_many({b"7": (2, b"", 0, -1, b"", 0)})
    assert (rows.read, rows.written) == (2, 2)


def test_an_added_bucket_takes_its_keys_from_one_other() -> None:
    """Each number keeps its bucket or goes to the added one, which takes numbers of one bucket only."""
    for count in range(1, 40):
        moved = {
            bucket_of(number, count)
            for number in range(2000)
            if bucket_of(number, count) != bucket_of(number, count + 1)
        }
        assert len(moved) == 1
        assert all(bucket_of(number, count + 1) in (bucket_of(number, count), count) for number in range(2000))


def test_a_checkpoint_of_an_earlier_version_is_refused() -> None:
    """State with a row for each key is refused, and the error says how to go on; it is not taken for an empty one."""
    former = Rows()
    former.rows[b"1"] = b"\0" * 20
    with pytest.raises(Stop, match="new checkpointLocation, initial='sow', and as startingOffsets"):
        Buckets(Rows(), former).get_many([b"1"])


def test_a_bucket_with_an_object_is_refused() -> None:
    """A bucket is read without creating objects of classes, so that a damaged one cannot run code."""
    rows = Rows()
    Buckets(rows, Rows()).put_many({b"1": (1, b"{}", 0, -1, b"", 0)})
    rows.rows[b"0"] = pickle.dumps({b"1": os.system})
    with pytest.raises(Stop, match="damaged"):
        Buckets(rows, Rows()).get_many([b"1"])


def test_the_row_of_sizes_has_the_number_of_entries() -> None:
    """The number of records in a state is read from one row of each partition."""
    store = Rows()
    for changes, count in (({b"1": 1, b"2": 2}, 2), ({b"2": 3, b"3": 4}, 3), ({b"1": None, b"9": None}, 2)):
        buckets = Buckets(store, Rows())
        buckets.put_many({key: None if n is None else (n, b"{}", 0, 0, b"", 0) for key, n in changes.items()})
        assert entries_in(b"\x00" + store.rows[b"size"]) == count
