"""Failing compactions: writes do not wait for one that cannot succeed, and closing waits for none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from processor.record import Stored
from processor.store import rocksdb_writes
from processor.store.contract import Progress
from processor.store.rocksdb_memory import RocksMemory
from tests.small_disk import SmallDisk, small_disks
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processor.store.rocksdb import RocksStore

MB = 1 << 20
ROWS = 100
"""The size of one batch: about one table."""
MEMORY = 256 * 1024
GROUND = 30
"""Batches in the large table at the bottom, which every compaction has to rewrite."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 8 MB."""
    with small_disks(tmp_path) as make:
        yield make(8 * MB)


def look(store: RocksStore, name: str) -> int:
    """One of RocksDB's counters."""
    return int(store._db.property_value(f"rocksdb.{name}") or 0)


def apply(store: RocksStore, number: int) -> None:
    """Write one batch, which becomes a table."""
    store.apply({b"%d %d" % (number, n): Stored(number, os.urandom(1000)) for n in range(ROWS)}, Progress(number, 1))


def lay_ground(store: RocksStore) -> None:
    """Write batches and compact them into one table."""
    for number in range(1, GROUND + 1):
        apply(store, number)
    store._db.flush(True)
    store._db.compact_range(None, None)
    assert look(store, "num-files-at-level0") == 0


def write_until_a_compaction_fails(store: RocksStore, directory: Path) -> int:
    """Write until there is room for tables and none for a compaction; returns the number of the next batch."""
    store._db.set_options({"disable_auto_compactions": "true"})
    number = GROUND + 1
    while look(store, "num-files-at-level0") < 4:
        apply(store, number)
        number += 1
        store._db.flush(True)  # Else a busy machine writes more than its other thread flushes, and fills the disk.
    store._db.set_options({"disable_auto_compactions": "false"})
    # The unfinished output of the compaction fills the disk until it is deleted.
    until(lambda: look(store, "background-errors") and shutil.disk_usage(directory).free >= MB, "a failed compaction")
    return number


def run(code: str, *arguments: object) -> str:
    """Run a script in a process of its own, which may wait for ever without blocking the test; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.store.test_back_pressure import *\n{code}", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STARVED = """
from pathlib import Path
from processor.errors import DiskUnusable
from processor.store.rocksdb import RocksStore

directory = Path(sys.argv[1])
store = RocksStore(directory / "0", identity="orders.sow/0", memory=RocksMemory(MEMORY))
number = write_until_a_compaction_fails(store, directory)
try:
    for number in range(number, 1000):
        apply(store, number)
except DiskUnusable as error:
    print(error)
print(look(store, "num-files-at-level0"), "tables")
store.close()
print("closed")
"""


def test_a_compaction_without_room_is_told_by_the_write_that_waits_for_it(disk: SmallDisk, open_rocks) -> None:
    """A write raises the error of a compaction without room, where RocksDB would wait for ever; no data is lost."""
    memory = RocksMemory(MEMORY)
    store = open_rocks(disk.path / "0", memory=memory)
    lay_ground(store)
    store.close()
    disk.leave_only(3 * MB)

    said = run(STARVED, disk.path)
    assert re.search(
        rf"writing {disk.path}/0: .*No space left on device to compact tables of \d\.\d MB.*\d MB are free there.*"
        "make room, or give state_dir .* a larger disk, then start again",
        said,
    ), said
    assert re.search(r"\b2[01] tables", said), said  # RocksDB stops writes at 20; a flush that had begun adds one.
    assert "closed" in said

    disk.grow(256 * MB)
    again = open_rocks(disk.path / "0", memory=memory)
    assert again.initial_content == "clean"
    position = again.progress().position
    assert position > GROUND
    complete = {b"%d %d" % (number, n) for number in range(1, position + 1) for n in range(ROWS)}
    assert complete <= {key for key, _ in again.scan()}
    apply(again, position + 1)


def test_a_store_goes_on_by_itself_when_there_is_room_before_writes_wait(disk: SmallDisk, open_rocks) -> None:
    """A failed compaction is repeated without an error if there is room again before writes have to wait."""
    store = open_rocks(disk.path / "0", memory=RocksMemory(MEMORY))
    lay_ground(store)
    disk.leave_only(3 * MB)
    begin = write_until_a_compaction_fails(store, disk.path)
    disk.grow(256 * MB)
    for number in range(begin, begin + 40):
        apply(store, number)
    assert store.progress().position == begin + 39
    until(lambda: look(store, "num-files-at-level0") < 4, "a repeated compaction, which is another thread's")


FORBIDDEN = """
import resource, signal
from pathlib import Path
from processor.errors import DiskUnusable
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_writes import TABLES_MAX

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksStore(Path(sys.argv[1]) / "0", identity="orders.sow/0", memory=RocksMemory(MEMORY))
store._db.set_options({"disable_auto_compactions": "true"})
number = 1
for number in range(1, TABLES_MAX + 1):
    store._db.put(b"%d" % number, os.urandom(20_000))
    store._db.flush(True)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    store._db.set_options({"disable_auto_compactions": "false"})
except Exception:
    pass  # It cannot be kept in a file.
while look(store, "background-errors") == 0:
    time.sleep(0.01)
try:
    apply(store, 1)
except DiskUnusable as error:
    print(error)
"""


def test_a_compaction_that_fails_for_another_reason_is_told_with_that(tmp_path: Path) -> None:
    """A compaction that fails for another reason raises that error: RocksDB would not retry, and the wait never end."""
    assert re.search(r"writing .*File too large.*ulimit -f", run(FORBIDDEN, tmp_path))


def test_a_write_that_waits_for_a_compaction_says_all_the_time_that_it_lives(tmp_path: Path) -> None:
    """A write that waits for a compaction signals all the time that it lives, as that may take long after a load."""
    options = Options(raw_mode=True)
    options.set_disable_auto_compactions(True)
    options.set_compression_type(DBCompressionType.none())
    loaded = Rdict(str(tmp_path / "loaded"), options)
    for number in range(30):
        batch = WriteBatch(raw_mode=True)
        for n in range(20):
            batch[b"%d %d" % (n, number)] = bytes(100_000)
        loaded.write(batch)
        loaded.flush(True)
    assert int(loaded.property_value("rocksdb.num-files-at-level0") or 0) == 30
    beats: list[float] = []
    loaded.set_options({"disable_auto_compactions": "false"})
    rocksdb_writes.wait_for_compaction(loaded, 20, WriteOptions(), lambda: beats.append(time.monotonic()))
    assert int(loaded.property_value("rocksdb.num-files-at-level0") or 0) < 20
    assert beats
    before = len(beats)
    rocksdb_writes.wait_for_compaction(loaded, 20, WriteOptions(), lambda: beats.append(time.monotonic()))
    assert len(beats) == before, "there was nothing to wait for"
    loaded.close()


def test_a_store_beats_as_the_memory_that_it_shares_was_told(tmp_path: Path, open_rocks, monkeypatch) -> None:
    """A store signals with the callback of the memory that it shares, for the watchdog of the writing thread."""
    handed_on: list[object] = []
    monkeypatch.setattr(rocksdb_writes, "wait_for_compaction", lambda *arguments: handed_on.append(arguments[-1]))

    def beat() -> None:
        """A sign of life of the thread."""

    apply(open_rocks(tmp_path / "0", memory=RocksMemory(MEMORY, beat)), 1)
    assert set(handed_on) == {beat}
