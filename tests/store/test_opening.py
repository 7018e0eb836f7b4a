"""The opening of a store: recognising its owner, and whether it was closed properly."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from processor.errors import DiskUnusable
from processor.record import Stored
from processor.store import layout
from processor.store.contract import SKEW_MAX_MS, Progress, past_ms, stale_reason
from processor.store.rocksdb import RocksMemory, RocksStore

ONE = {b"a": Stored(1, b"x")}

# Opens the store, applies the given batches, and waits to be killed.
USER = """
import sys
from pathlib import Path
from processor.record import Stored
from processor.store.rocksdb import RocksMemory, RocksStore
from processor.store.contract import Progress

store = RocksStore(Path(sys.argv[1]), identity="orders.sow/0", memory=RocksMemory(1024 * 1024))
for position in range(2, 2 + int(sys.argv[2])):
    store.apply({b"b": Stored(1, b"y" * 300_000)}, Progress(position, 1))
print(store.initial_content, flush=True)
sys.stdin.read()
"""


def killed(directory: Path, batches: int) -> str:
    """Have another process open the store, apply batches and be killed; returns the content that it found."""
    with subprocess.Popen(
        [sys.executable, "-c", USER, str(directory), str(batches)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        found = process.stdout.readline().decode().strip()
        process.send_signal(signal.SIGKILL)
    return found


def closed(open_rocks, **more) -> None:
    """Create a store with one record, and close it properly."""
    store = open_rocks(**more)
    store.apply(ONE, Progress(1, 1))
    store.close()


def test_a_directory_that_is_not_there_is_new(open_rocks):
    """A missing directory is a new store, and so is one in which no batch was ever flushed."""
    assert open_rocks().initial_content == "new"


def test_a_store_that_was_closed_is_clean(open_rocks):
    """A store that was closed is clean after any number of openings, with and without a change."""
    closed(open_rocks)
    for change in ({}, ONE, {b"a": None}):
        store = open_rocks()
        assert store.initial_content == "clean"
        if change:
            store.apply(change, Progress(2, 2))
        store.close()
    assert open_rocks().initial_content == "clean"


def test_a_killed_user_that_wrote_leaves_it_unclean(open_rocks, tmp_path):
    """A killed process that wrote leaves the store unclean: the first batch on disk removes the mark."""
    closed(open_rocks)
    assert killed(tmp_path / "0", batches=10) == "clean"
    store = open_rocks()
    assert (store.initial_content, store.progress().position > 1) == ("unclean", True)
    store.close()
    assert open_rocks().initial_content == "clean"


@pytest.mark.parametrize("batches", [0, 1])
def test_a_killed_user_of_whom_nothing_reached_the_disk_leaves_it_clean(open_rocks, tmp_path, batches):
    """A killed process none of whose writes reached the disk leaves the store clean: the mark is about the disk."""
    closed(open_rocks)
    assert killed(tmp_path / "0", batches) == "clean"
    store = open_rocks()
    assert (store.initial_content, store.progress(), list(store.scan())) == ("clean", Progress(1, 1), list(ONE.items()))


@pytest.mark.parametrize("identity", ["orders.sow/1/id", "orders.sow/0/another", "trades.sow/0/id"])
def test_what_is_a_cache_of_another_topic_is_told_and_wiped(open_rocks, identity):
    """A cache of another partition, of a recreated topic or of another topic is reported and wiped."""
    closed(open_rocks, identity=identity)
    mine = open_rocks(identity="orders.sow/0/id")
    assert (mine.initial_content, mine.progress(), list(mine.scan())) == ("identity", Progress(0, 0), [])
    mine.close()
    assert open_rocks(identity="orders.sow/0/id").initial_content == "clean"


def test_another_format_is_told_and_wiped(open_rocks, monkeypatch):
    """A store in the format of an older or newer version is reported and wiped."""
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT", b"2")
        closed(open_rocks)
    mine = open_rocks()
    assert (mine.initial_content, list(mine.scan())) == ("format", [])


def test_the_format_before_is_read_and_becomes_the_present_one(open_rocks, monkeypatch):
    """A store of format 4 keeps its records, and has the present format from then on: an older version wipes it."""
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT", b"4")
        store = open_rocks()
        store.apply({b"a": Stored(7, b"x", 0, -1, b"60")}, Progress(1, 1))
        store.close()
    mine = open_rocks()
    assert (mine.initial_content, list(mine.scan())) == ("clean", [(b"a", Stored(7, b"x", 0, -1, b"60"))])
    assert mine._db.get(layout.FORMAT_KEY) == layout.FORMAT == b"5"


def test_somebody_elses_database_is_wiped(open_rocks, tmp_path):
    """A database that is not ours is wiped, as it may have rows that look like ours."""
    (tmp_path / "0").mkdir()
    theirs = Rdict(str(tmp_path / "0" / layout.ROCKSDB_DIRECTORY), Options(raw_mode=True))
    theirs[layout.RECORD_PREFIX + b"a"] = layout.encode_record(Stored(7, b"theirs"))
    theirs.close()
    mine = open_rocks()
    assert (mine.initial_content, list(mine.scan())) == ("identity", [])


def test_a_part_of_the_first_batch_is_wiped(open_rocks, tmp_path, memory):
    """A part of the first batch is wiped: position 0 means an empty store, and the age of these records is unknown."""
    store = open_rocks()
    many = {b"%d" % number: Stored(1, bytes(1000)) for number in range(2_000)}
    store.apply(many, Progress(2_000, 1))
    store._db.put(layout.PROGRESS_KEY, layout.encode_progress(Progress(0, 0)), write_opt=store._unlogged)
    store.close()
    again = open_rocks()
    assert (again.progress(), list(again.scan())) == (Progress(0, 0), [])


def test_a_large_batch_is_written_in_parts_and_its_progress_with_the_last(open_rocks, memory, monkeypatch):
    """A large batch is written in parts, with its progress in the last; the write buffers stay within their budget."""
    store = open_rocks()
    seen = []
    monkeypatch.setattr(memory, "relieve", lambda _: seen.append(store.progress().position))
    many = {b"%d" % number: Stored(1, bytes(1000)) for number in range(2_000)}
    store.apply(many, Progress(2_000, 1))
    assert len(seen) == -(-2_000 * 1_100 // memory.part_bytes)
    assert seen == [0] * (len(seen) - 1) + [2_000]
    assert dict(store.scan()) == many


def test_a_burst_stays_within_the_budget_of_the_write_buffers(tmp_path):
    """A burst of writes stays within the budget of the write buffers, which RocksDB alone would exceed many times."""
    memory = RocksMemory(8 << 20)
    store = RocksStore(tmp_path / "0", identity="orders.sow/0", memory=memory)
    most = 0
    for turn in range(40):
        store.apply({b"%d" % n: Stored(turn, bytes(1000)) for n in range(1_000)}, Progress(turn + 1, 0))
        most = max(most, memory._write_buffers.get_usage())
    store.close()
    assert most < 4 * 1.2 * (1 << 20)


def test_a_wipe_leaves_a_link_to_another_disk(open_rocks, tmp_path):
    """The records go where they are, and the lock of the partition stays where other processes look for it."""
    place, link = tmp_path / "large", tmp_path / "1"
    place.mkdir()
    link.symlink_to(place)
    store = open_rocks(link)
    store.apply(ONE, Progress(1, 1))
    store.wipe()
    assert link.is_symlink()
    assert sorted(path.name for path in place.iterdir()) == [layout.LOCK_FILE, layout.ROCKSDB_DIRECTORY]
    assert store.get_many([b"a"]) == [None]


def test_many_idle_partitions_leave_the_write_buffers_to_the_busy_ones(open_rocks, memory, monkeypatch, tmp_path):
    """From some number of partitions on a write buffer has no filter, which would take most of an idle one."""
    monkeypatch.setattr("processor.store.rocksdb_memory._FILTERS_MAX", 3)
    used = [memory._write_buffers.get_usage()]
    for number in range(5):
        open_rocks(tmp_path / str(number))
        used.append(memory._write_buffers.get_usage())
    sizes = [after - before for before, after in itertools.pairwise(used)]
    filter_bytes = memory.capacity_bytes // 2048
    assert [size >= filter_bytes for size in sizes] == [True, True, True, False, False]


def test_a_file_system_without_locks_is_told_and_nothing_is_wiped(open_rocks, monkeypatch):
    """A file system without locks, as over some networks, is reported as such, and nothing is wiped."""
    closed(open_rocks)

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", refuse)
        with pytest.raises(DiskUnusable, match="a file system that has locks"):
            open_rocks()
    assert open_rocks().initial_content == "clean"


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("age_ms", "reason"),
    [
        (0, None),
        (HOUR_MS, None),
        (DAY_MS + HOUR_MS, "too_old"),
        (-SKEW_MAX_MS + 60_000, None),
        (-SKEW_MAX_MS - 60_000, "too_old"),
        (-10 * DAY_MS, "too_old"),
        (-(2**62), "too_old"),
    ],
)
def test_a_copy_is_used_while_its_age_is_known_and_below_the_retention(age_ms: int, reason: str | None) -> None:
    """A copy from the future has no known age; clocks that differ by a few minutes wipe nothing."""
    progress = Progress(7, int(time.time() * 1000) - age_ms)
    stale = stale_reason(progress, 10, DAY_MS)
    assert (None if stale is None else stale[0]) == reason


def test_an_empty_copy_has_no_age() -> None:
    """There is nothing to wipe before the first record."""
    assert stale_reason(Progress(0, 0), 10, DAY_MS) is None


def test_a_record_from_the_future_is_as_old_as_now() -> None:
    """A copy whose last record has the time of a clock that was ahead is dated by the own clock."""
    before_ms = int(time.time() * 1000)
    assert before_ms <= past_ms(before_ms + DAY_MS) <= before_ms + HOUR_MS
    assert past_ms(before_ms - DAY_MS) == before_ms - DAY_MS
