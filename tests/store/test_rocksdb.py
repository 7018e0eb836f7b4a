"""The store on disk: its durability, its shared memory, and its exclusive use of a directory."""

import gc
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from processor.errors import StateLocked
from processor.record import Stored
from processor.store import layout
from processor.store.contract import Progress
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
