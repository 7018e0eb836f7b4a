"""A disk that is full, read-only or failing: the store raises an error, wipes nothing, and recovers with the disk."""

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from processor.errors import DiskUnusable, StateDamaged, StateLocked
from processor.record import Stored
from processor.store import partition_directory
from processor.store.contract import Progress
from processor.store.errors import mapped_errors
from processor.store.rocksdb import RocksStore
from tests.small_disk import SmallDisk, small_disks

BATCH = 300
MB = 1 << 20


@pytest.fixture
def disk(tmp_path):
    """A file system of 16 MB."""
    with small_disks(tmp_path) as make:
        yield make(16 * MB)


def fill(store: RocksStore, batches: int = 10_000) -> int:
    """Apply batches of about 300 KB until the disk is full; returns how many were applied."""
    begin = store.progress().position
    for number in range(begin + 1, begin + batches + 1):
        try:
            store.apply(
                {b"%d %d" % (number, n): Stored(number, os.urandom(1000)) for n in range(BATCH)}, Progress(number, 1)
            )
        except DiskUnusable:
            return number - begin
    pytest.fail("the disk took everything")


def check(store: RocksStore) -> int:
    """Check that the records are those of the progress; returns the progress."""
    position = store.progress().position
    complete = {b"%d %d" % (number, n) for number in range(1, position + 1) for n in range(BATCH)}
    assert complete <= {key for key, _ in store.scan()}
    return position


def test_a_full_disk_is_told_with_the_place_the_room_and_what_to_do(disk: SmallDisk, open_rocks):
    """A full disk is reported with place, room and remedy, the first time and later; the records can still be read."""
    store = open_rocks(disk.path / "0")
    fill(store)
    for _ in range(3):
        with pytest.raises(
            DiskUnusable,
            match=rf"writing {disk.path}/0: IO error: No space left on device.*\d MB are free there.*make room",
        ):
            store.apply({b"a": Stored(1, b"x")}, Progress(99, 1))
    assert check(store) > 0
    with pytest.raises(DiskUnusable, match="closing"):
        store.close()


@pytest.mark.parametrize("room", [0, 10_000, 400_000])
def test_after_making_room_the_store_goes_on(disk: SmallDisk, open_rocks, room):
    """After a flush or a compaction on a full disk, the store goes on from an earlier batch, and nothing is wiped."""
    disk.leave_only(8 * MB + room)
    store = open_rocks(disk.path / "0")
    fill(store)
    with pytest.raises(DiskUnusable):
        store.close()
    disk.grow(64 * MB)
    again = open_rocks(disk.path / "0")
    assert again.initial_content == "unclean"
    assert check(again) > 0
    again.apply({b"a": Stored(1, b"x")}, Progress(1_000, 1))
    again.close()
    last = open_rocks(disk.path / "0")
    assert (last.initial_content, last.progress().position) == ("clean", 1_000)


def test_a_disk_without_any_room_refuses_a_new_store(disk: SmallDisk, open_rocks):
    """A disk without room refuses a new store, and no remains prevent a later one."""
    disk.leave_only(0)
    with pytest.raises(DiskUnusable, match="No space left on device"):
        open_rocks(disk.path / "0")
    disk.grow(64 * MB)
    assert open_rocks(disk.path / "0").initial_content in {"new", "unclean"}


def test_a_store_that_was_closed_is_told_from_a_full_disk(disk: SmallDisk, open_rocks):
    """A store that was closed properly cannot be opened on a full disk, and stays as it was."""
    store = open_rocks(disk.path / "0")
    store.apply({b"a": Stored(1, b"x")}, Progress(1, 1))
    store.close()
    disk.leave_only(0)
    with pytest.raises(DiskUnusable, match="No space left on device"):
        open_rocks(disk.path / "0")
    disk.grow(64 * MB)
    again = open_rocks(disk.path / "0")
    assert (again.initial_content, again.get_many([b"a"])) == ("clean", [Stored(1, b"x")])


def test_a_read_only_file_system_is_told(disk: SmallDisk, open_rocks):
    """A read-only file system, as the kernel makes a broken one, is reported as such."""
    store = open_rocks(disk.path / "0")
    store.apply({b"a": Stored(1, b"x")}, Progress(1, 1))
    store.close()
    disk.forbid_writing()
    for _ in range(2):
        with pytest.raises(DiskUnusable, match=r"Read-only file system.*mount the file system for writing"):
            open_rocks(disk.path / "0")
    with pytest.raises(DiskUnusable, match="Read-only file system"):
        partition_directory.destroy(disk.path / "0")


LIMITED = """
import resource, sys
from pathlib import Path
from processor.errors import DiskUnusable
from processor.record import Stored
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory
from processor.store.contract import Progress
import os, signal

limit, value = int(sys.argv[2]), int(sys.argv[3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksStore(Path(sys.argv[1]) / "0", identity="orders.sow/0", memory=RocksMemory(4 << 20))
resource.setrlimit(limit, (value, value))
try:
    for number in range(100):
        store.apply({b"%d %d" % (number, n): Stored(1, os.urandom(1000)) for n in range(1000)}, Progress(number, 1))
except DiskUnusable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("limit", "value", "told"),
    [
        (resource.RLIMIT_FSIZE, 200_000, r"File too large.*ulimit -f"),
        (resource.RLIMIT_NOFILE, 8, r"Too many open files.*ulimit -n"),
    ],
)
def test_a_limit_of_the_process_is_told(tmp_path, limit, value, told):
    """A limit of the process is reported by its name; wiping would not help."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(limit), str(value)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(told, done.stdout), done.stdout + done.stderr


TEXTS = {
    "IO error: No space left on device: While appending to file: /d/000021.sst: No space left on device": DiskUnusable,
    "IO error: While appending to file: /d/000021.sst: Disk quota exceeded": DiskUnusable,
    "IO error: While pread offset 0 len 4096: /d/000021.sst: Input/output error": DiskUnusable,
    "IO error: While fdatasync: /d/000021.sst: Input/output error": DiskUnusable,
    "IO error: While mkdir if missing: /d: Read-only file system": DiskUnusable,
    "IO error: No such file or directory: While open a file for random read: /d/9.sst: No such file or directory": (
        StateDamaged
    ),
    "IO error: While opening a file for sequentially reading: /d/CURRENT: Is a directory": StateDamaged,
    "Corruption: block checksum mismatch: stored = 1, computed = 2 in /d/Input/output error/9.sst": StateDamaged,
    "IO error: While lock file: /d/LOCK: Resource temporarily unavailable": StateLocked,
    "IO error: lock hold by current process, acquire time 1 acquiring thread 2: /d/LOCK: No locks available": (
        StateLocked
    ),
    "No space left on device (os error 28)": DiskUnusable,
    "No such file or directory (os error 2)": StateDamaged,
    "anything else": StateDamaged,
}


@pytest.mark.parametrize(("text", "meaning"), TEXTS.items())
def test_rocksdbs_words_are_understood(text, meaning):
    """RocksDB's texts for errors that a test disk cannot produce are recognised."""
    with pytest.raises(meaning), mapped_errors("writing", Path("/d")):
        raise Exception(text)  # noqa: TRY002  # As rocksdict does.


@pytest.mark.parametrize(
    ("number", "meaning"),
    [(errno.EIO, DiskUnusable), (errno.EDQUOT, DiskUnusable), (errno.EEXIST, StateDamaged)],
)
def test_the_file_systems_errors_are_understood(number, meaning):
    """The file system's errors are recognised by number, such as those of creating a partition's directory."""
    with pytest.raises(meaning), mapped_errors("opening", Path("/d")):
        raise OSError(number, os.strerror(number), "/d")
