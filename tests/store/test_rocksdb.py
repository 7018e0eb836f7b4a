"""The store on RocksDB: its options, its locks, and its bulk load."""

import gc
import random
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from processor.errors import StateLocked
from processor.record import Stored
from processor.store import layout
from processor.store.contract import Progress
from processor.store.layout import encode_record
from processor.store.rocksdb import RocksMemory, RocksStore
from tests.waiting import until

MB = 1024 * 1024

HOLDER = """
import sys
from pathlib import Path
from processor.store.rocksdb import RocksMemory, RocksStore

store = RocksStore(Path(sys.argv[1]), identity="orders.sow/0", memory=RocksMemory(1024 * 1024))
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(directory: Path):
    """Keep a directory open in another process, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_what_was_applied_is_there_after_closing(open_rocks):
    """Applied records are there after closing, which flushes them, as nothing is logged."""
    store = open_rocks()
    store.apply({b"a": Stored(3, b"x", 4, 5)}, Progress(6, 7))
    store.close()
    again = open_rocks()
    assert again.get_many([b"a"]) == [Stored(3, b"x", 4, 5)]
    assert again.progress() == Progress(6, 7)


@pytest.mark.parametrize("opened", [1, 2, 3])
def test_a_database_opened_again_keeps_its_table_options(open_rocks, tmp_path, opened):
    """A reopened database keeps its options: bloom filters, block size and shared cache, by RocksDB's log."""
    for _ in range(opened):
        open_rocks().close()
    log = (tmp_path / "0" / layout.ROCKSDB_DIRECTORY / "LOG").read_text()
    said = dict(line.strip().split(":", 1) for line in log.splitlines() if line.startswith("  ") and ":" in line)
    assert said["filter_policy"].strip() == "bloomfilter"
    assert said["block_size"].strip() == "4096"
    assert said["cache_index_and_filter_blocks"].strip() == "1"
    assert said["partition_filters"].strip() == "1"
    assert "Options.memtable_whole_key_filtering: 1" in log
    assert log.split("Options.memtable_prefix_bloom_size_ratio: ")[1].startswith("0.000061")  # 4 KB of 64 MB.
    [capacity] = [line for line in log.splitlines() if line.strip().startswith("capacity :")]
    assert capacity.split(":")[1].strip() == str(8 * MB)


def flushed(stores: list[RocksStore]) -> None:
    """Wait until RocksDB has finished its flushes."""
    properties = ("rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes")
    until(lambda: not any(store._db.property_int_value(name) for store in stores for name in properties), pause_s=0.001)


def buffered_bytes(stores: list[RocksStore]) -> int:
    """The bytes that wait in memory to be flushed."""
    return sum(store._db.property_int_value("rocksdb.cur-size-all-mem-tables") for store in stores)


def test_partitions_share_their_memory(tmp_path):
    """Twenty partitions with 20 MB of writes take the memory of one partition, not twenty times as much.

    The budget of 8 MB is soft: blocks in use and buffers being flushed may exceed it for a moment.
    """
    memory = RocksMemory(8 * MB)
    stores = [RocksStore(tmp_path / str(n), identity=f"orders.sow/{n}", memory=memory) for n in range(20)]
    for turn in range(10):
        for store in stores:
            store.apply({b"%d" % n: Stored(turn, bytes(1000)) for n in range(100)}, Progress(turn + 1, 0))
        flushed(stores)
        assert buffered_bytes(stores) < 12 * MB
    for store in stores:
        assert len(list(store.scan())) == 100
    assert memory._cache.get_usage() < 12 * MB
    for store in stores:
        store.close()


def test_idle_partitions_take_next_to_nothing(tmp_path):
    """Fifty open but idle partitions leave nearly all of the cache to records."""
    memory = RocksMemory(8 * MB)
    stores = [RocksStore(tmp_path / str(n), identity=f"orders.sow/{n}", memory=memory) for n in range(50)]
    assert buffered_bytes(stores) < 50 * 64 * 1024
    assert memory._cache.get_usage() < 4 * MB
    for store in stores:
        store.close()


def test_a_second_opener_is_refused(open_rocks, tmp_path):
    """A second opening in the same process is refused with the directory's name; the first user does not notice."""
    store = open_rocks()
    with pytest.raises(StateLocked, match=f"{tmp_path / '0'} is in use by another process"):
        open_rocks()
    store.apply({b"a": Stored(1, b"x")}, Progress(1, 1))
    store.close()
    assert open_rocks().progress() == Progress(1, 1)


def test_another_process_keeps_the_directory_until_it_is_gone(open_rocks, tmp_path):
    """Another process keeps the directory locked while it lives; killed, it leaves no lock."""
    with held_elsewhere(tmp_path / "0") as process:
        with pytest.raises(StateLocked):
            open_rocks()
        process.kill()
        process.wait()
        assert open_rocks().progress() == Progress(0, 0)


def test_a_store_that_is_dropped_lets_the_directory_go(tmp_path, memory):
    """A store that is dropped without closing releases its directory for a successor in the same process."""
    store = RocksStore(tmp_path / "0", identity="orders.sow/0", memory=memory)
    del store
    gc.collect()
    RocksStore(tmp_path / "0", identity="orders.sow/0", memory=memory).close()


@pytest.mark.parametrize("identity", ["orders.sow/1", "trades.sow/0", ""])
def test_the_state_of_another_partition_is_wiped(open_rocks, identity):
    """The state of another partition is wiped, as of a moved directory or a renamed topic."""
    store = open_rocks(identity=identity)
    store.apply({b"a": Stored(1, b"x")}, Progress(5, 5))
    store.close()
    mine = open_rocks()
    assert (mine.progress(), list(mine.scan())) == (Progress(0, 0), [])
    mine.apply({b"b": Stored(1, b"y")}, Progress(1, 1))
    mine.close()
    assert list(open_rocks().scan()) == [(b"b", Stored(1, b"y"))]


def test_state_in_another_format_is_wiped(open_rocks, monkeypatch):
    """State in the format of an older or newer version is wiped."""
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT", b"0")
        store = open_rocks()
        store.apply({b"a": Stored(1, b"x")}, Progress(5, 5))
        store.close()
    assert open_rocks().progress() == Progress(0, 0)


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
