"""What a store finds when it is opened: whose it is, and whether it was closed in good order."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from processor.errors import DiskUnusable
from processor.record import Stored
from processor.store import layout
from processor.store.contract import Progress
from processor.store.rocksdb import RocksMemory, RocksStore

ONE = {b"a": Stored(1, b"x")}

# Opens the store, applies what it was told to, and waits to be killed.
USER = """
import sys
from pathlib import Path
from processor.record import Stored
from processor.store.rocksdb import RocksMemory, RocksStore
from processor.store.contract import Progress

store = RocksStore(Path(sys.argv[1]), identity="orders.sow/0", memory=RocksMemory(1024 * 1024))
for position in range(2, 2 + int(sys.argv[2])):
    store.apply({b"b": Stored(1, b"y" * 300_000)}, Progress(position, 1))
print(store.found, flush=True)
sys.stdin.read()
"""


def killed(directory: Path, batches: int) -> str:
    """Another process opens the store, applies batches and is killed; what it had found."""
    with subprocess.Popen(
        [sys.executable, "-c", USER, str(directory), str(batches)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        found = process.stdout.readline().decode().strip()
        process.send_signal(signal.SIGKILL)
    return found


def closed(open_rocks, **more) -> None:
    """Leave a store with one record, closed in good order."""
    store = open_rocks(**more)
    store.apply(ONE, Progress(1, 1))
    store.close()


def test_a_directory_that_is_not_there_is_new(open_rocks):
    """And so is one in which nothing was ever flushed."""
    assert open_rocks().found == "new"


def test_a_store_that_was_closed_is_clean(open_rocks):
    """However often it is opened and closed, with and without a change."""
    closed(open_rocks)
    for change in ({}, ONE, {b"a": None}):
        store = open_rocks()
        assert store.found == "clean"
        if change:
            store.apply(change, Progress(2, 2))
        store.close()
    assert open_rocks().found == "clean"


def test_a_killed_user_that_wrote_leaves_it_unclean(open_rocks, tmp_path):
    """Some of what it wrote reached the disk: with the first of it the mark is gone."""
    closed(open_rocks)
    assert killed(tmp_path / "0", batches=10) == "clean"
    store = open_rocks()
    assert (store.found, store.progress().position > 1) == ("unclean", True)
    store.close()
    assert open_rocks().found == "clean"


@pytest.mark.parametrize("batches", [0, 1])
def test_a_killed_user_of_whom_nothing_reached_the_disk_leaves_it_clean(open_rocks, tmp_path, batches):
    """It is the store that was closed: the mark tells of the disk, not of the process."""
    closed(open_rocks)
    assert killed(tmp_path / "0", batches) == "clean"
    store = open_rocks()
    assert (store.found, store.progress(), list(store.scan())) == ("clean", Progress(1, 1), list(ONE.items()))


@pytest.mark.parametrize("identity", ["orders.sow/1/id", "orders.sow/0/another", "trades.sow/0/id"])
def test_what_is_a_cache_of_another_topic_is_told_and_wiped(open_rocks, identity):
    """Another partition, a topic that was made anew, another topic."""
    closed(open_rocks, identity=identity)
    mine = open_rocks(identity="orders.sow/0/id")
    assert (mine.found, mine.progress(), list(mine.scan())) == ("identity", Progress(0, 0), [])
    mine.close()
    assert open_rocks(identity="orders.sow/0/id").found == "clean"


def test_another_format_is_told_and_wiped(open_rocks, monkeypatch):
    """An older or newer version's."""
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT", b"2")
        closed(open_rocks)
    mine = open_rocks()
    assert (mine.found, list(mine.scan())) == ("format", [])


def test_somebody_elses_database_is_wiped(open_rocks, tmp_path):
    """It may have rows that look like ours."""
    (tmp_path / "0").mkdir()
    theirs = Rdict(str(tmp_path / "0" / layout.ROCKSDB_DIRECTORY), Options(raw_mode=True))
    theirs[layout.RECORD_PREFIX + b"a"] = layout.encode_record(Stored(7, b"theirs"))
    theirs.close()
    mine = open_rocks()
    assert (mine.found, list(mine.scan())) == ("identity", [])


def test_a_part_of_the_first_batch_is_wiped(open_rocks, tmp_path, memory):
    """Position 0 stands for an empty store: how old those records are nobody knows, so a deleted one might stay."""
    store = open_rocks()
    many = {b"%d" % number: Stored(1, bytes(1000)) for number in range(2_000)}
    store.apply(many, Progress(2_000, 1))
    store._db.put(layout.PROGRESS_KEY, layout.encode_progress(Progress(0, 0)), write_opt=store._unlogged)
    store.close()
    again = open_rocks()
    assert (again.progress(), list(again.scan())) == (Progress(0, 0), [])


def test_a_large_batch_is_written_in_parts_and_its_progress_with_the_last(open_rocks, memory, monkeypatch):
    """Records may be ahead of the progress, never behind; the write buffers stay within their budget."""
    store = open_rocks()
    seen = []
    monkeypatch.setattr(memory, "relieve", lambda _: seen.append(store.progress().position))
    many = {b"%d" % number: Stored(1, bytes(1000)) for number in range(2_000)}
    store.apply(many, Progress(2_000, 1))
    assert len(seen) == -(-2_000 * 1_100 // memory.part_bytes)
    assert seen == [0] * (len(seen) - 1) + [2_000]
    assert dict(store.scan()) == many


def test_a_burst_stays_within_the_budget_of_the_write_buffers(tmp_path):
    """RocksDB alone would let it grow to many times as much: it flushes behind, and goes on taking."""
    memory = RocksMemory(8 << 20)
    store = RocksStore(tmp_path / "0", identity="orders.sow/0", memory=memory)
    most = 0
    for turn in range(40):
        store.apply({b"%d" % n: Stored(turn, bytes(1000)) for n in range(1_000)}, Progress(turn + 1, 0))
        most = max(most, memory._write_buffers.get_usage())
    store.close()
    assert most < 4 * 1.2 * (1 << 20)


def test_a_file_system_without_locks_is_told_and_nothing_is_wiped(open_rocks, monkeypatch):
    """Some that come over a network have none: that is neither damage nor another process."""
    closed(open_rocks)

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", refuse)
        with pytest.raises(DiskUnusable, match="a file system that has locks"):
            open_rocks()
    assert open_rocks().found == "clean"
