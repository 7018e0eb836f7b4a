"""Loading very many records: the fast way into a store has the same result as the usual one."""

import random
import shutil

import pytest

from processor.record import Stored
from processor.store.contract import Progress
from processor.store.layout import encode_record
from processor.store.rocksdb import RocksMemory, RocksStore


def rows_of(seed, count, keys):
    """Rows in the order of a topic: seldom a delete, often the same key."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(count):
        row = None if rng.random() < 0.1 else encode_record(Stored(number, rng.randbytes(rng.randrange(300))))
        yield b"%d" % rng.randrange(keys), row


@pytest.mark.parametrize("is_many", [False, True])
def test_what_is_loaded_is_what_was_applied(store, tmp_path, is_many):
    """A load stores the same records, deletes and progress as `apply`, and usual batches may follow."""
    told = {}
    for turn in range(5):
        rows = dict(rows_of(turn, 200, 100))
        store.load(rows, Progress(turn + 1, 1000 + turn), is_many=is_many)
        told |= rows
    assert store.progress() == Progress(5, 1004)
    store.load({b"late": encode_record(Stored(1, b"x"))}, Progress(6, 1005), is_many=is_many)
    store.apply({b"later": Stored(2, b"y"), b"late": None}, Progress(7, 1006))
    assert store.progress() == Progress(7, 1006)
    there = {key: row for key, row in told.items() if row is not None} | {b"later": encode_record(Stored(2, b"y"))}
    assert {key: encode_record(stored) for key, stored in store.scan()} == there
    assert store.get_many([b"later", b"late"]) == [Stored(2, b"y"), None]


def test_a_store_with_a_record_that_expires_cannot_be_loaded(store):
    """A store with a record that expires refuses a load, which would have to maintain the index."""
    assert store.can_load
    store.apply({b"a": Stored(1, b"x", 1_000)}, Progress(1, 0))
    assert not store.can_load
    store.wipe()
    assert store.can_load


def test_what_a_killed_process_leaves_of_a_load_is_some_state_of_the_past(tmp_path, open_rocks):
    """A killed load leaves an earlier state with its own position: checked on copies of the directory during a load."""
    store = open_rocks()
    rows = list(rows_of(7, 60_000, 20_000))
    positions = set()
    for number in range(30):
        begin = number * 2_000
        store.load(dict(rows[begin : begin + 2_000]), Progress(begin + 2_000, 1), is_many=True)
        if number % 6 == 3:
            store._db.flush(True)  # So that the copies differ, independently of the time of RocksDB's own flushes.
        if number % 6 == 5:
            shutil.copytree(tmp_path / "0", tmp_path / str(number))
            copy = open_rocks(tmp_path / str(number))
            position = copy.progress().position
            positions.add(position)
            expected = {key: row for key, row in dict(rows[:position]).items() if row is not None}
            assert {key: encode_record(stored) for key, stored in copy.scan()} == expected
            assert copy.initial_content in {"unclean", "new"}
    assert len(positions) > 2, "nothing was flushed between the copies"


def test_a_load_may_end_in_a_close_or_in_a_wipe(tmp_path, open_rocks):
    """A load may end with a close, which keeps the records, or with a wipe, after which the store is empty."""
    rows = {b"%d" % number: encode_record(Stored(1, b"x")) for number in range(100)}
    first = open_rocks()
    first.load(rows, Progress(100, 1), is_many=True)
    first.close()
    second = open_rocks()
    assert (second.initial_content, second.progress(), len(list(second.scan()))) == ("clean", Progress(100, 1), 100)
    second.load(rows, Progress(200, 2), is_many=True)
    second.wipe()
    assert (second.progress(), list(second.scan())) == (Progress(0, 0), [])
    second.load(rows, Progress(1, 1), is_many=True)
    assert len(list(second.scan())) == 100


def test_a_load_stays_within_the_memory_that_all_share(tmp_path):
    """Two loads at once, of large and of small records, stay within the memory that all stores share."""
    memory = RocksMemory(8 << 20)
    stores = [RocksStore(tmp_path / name, identity=name, memory=memory) for name in "ab"]
    rng = random.Random(3)
    most = 0
    for turn in range(40):
        for store, size in zip(stores, (200, 20_000), strict=True):
            count = 1_000_000 // size
            rows = {b"%d" % rng.randrange(10**9): bytes(18) + rng.randbytes(size) for _ in range(count)}
            store.load(rows, Progress(turn + 1, 0), is_many=True)
            most = max(most, memory._write_buffers.get_usage())
    for store in stores:
        store.close()
    assert 4 << 20 < most < (8 << 20) + 4 * memory.part_bytes
