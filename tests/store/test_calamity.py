"""Damage to a disk or a process: after it, a store returns right records or reports that it cannot."""

import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from processor.errors import StateDamaged
from processor.record import Stored
from processor.store import layout, partition_directory
from processor.store.contract import Progress
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory

KEYS = [b"%06d" % n for n in range(20_000)]

# Applies batches for ever: batch n sets one key for good and ten in turn, all to n, with position n.
WRITER = """
import sys
from pathlib import Path
from processor.record import Stored
from processor.store.rocksdb import RocksMemory, RocksStore
from processor.store.contract import Progress

store = RocksStore(Path(sys.argv[1]), identity="orders.sow/0", memory=RocksMemory(512 * 1024))
batch = 0
while True:
    batch += 1
    changes = {b"own %d" % batch: Stored(batch, bytes(500))}
    changes |= {b"shared %d" % n: Stored(batch, bytes(500)) for n in range(10)}
    store.apply(changes, Progress(batch, batch))
    if batch % 200 == 0:
        print(batch, flush=True)
"""


@pytest.fixture
def directory(tmp_path, open_rocks):
    """A partition's directory with twenty thousand records in it, closed."""
    store = open_rocks()
    # Values that do not compress: the file has more than one block.
    store.apply({key: Stored(1, repr(hash(key)).encode() * 10) for key in KEYS}, Progress(20_000, 1))
    store.close()
    return tmp_path / "0"


def newest(directory: Path, pattern: str) -> Path:
    """RocksDB's latest file of a kind."""
    return max((directory / layout.ROCKSDB_DIRECTORY).glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def flip(file: Path, begin: float, end: float) -> None:
    """Invert every bit between two fractions of a file."""
    data = bytearray(file.read_bytes())
    part = slice(int(len(data) * begin), int(len(data) * end))
    data[part] = bytes(byte ^ 0xFF for byte in data[part])
    file.write_bytes(data)


def cut(file: Path, to: float) -> None:
    """Keep only the beginning of a file."""
    with file.open("r+b") as opened:
        opened.truncate(int(file.stat().st_size * to))


CALAMITIES = {
    "the marks are overwritten": lambda directory: flip(newest(directory, "*.sst"), 0, 0.01),
    "the index is overwritten": lambda directory: flip(newest(directory, "*.sst"), 0.99, 0.9999),
    "a table is cut": lambda directory: cut(newest(directory, "*.sst"), 0.5),
    "a table is emptied": lambda directory: cut(newest(directory, "*.sst"), 0),
    "a table is gone": lambda directory: newest(directory, "*.sst").unlink(),
    "CURRENT is gone": lambda directory: newest(directory, "CURRENT").unlink(),
    "the MANIFEST is overwritten": lambda directory: flip(newest(directory, "MANIFEST*"), 0.25, 0.5),
    "the MANIFEST is gone": lambda directory: newest(directory, "MANIFEST*").unlink(),
}


@pytest.mark.parametrize("calamity", CALAMITIES.values(), ids=CALAMITIES)
def test_damage_is_found_when_the_store_is_opened_and_a_new_one_takes_its_place(directory, open_rocks, calamity):
    """Damage found at opening is reported with its place, and does not prevent a new store in the same directory."""
    calamity(directory)
    with pytest.raises(StateDamaged, match=str(directory)) as damage:
        open_rocks()
    partition_directory.destroy(directory)
    store = open_rocks()
    assert damage, "the error, and all that it refers to, is still there"
    assert (store.progress(), list(store.scan())) == (Progress(0, 0), [])
    store.apply({b"a": Stored(1, b"x")}, Progress(1, 1))
    assert store.get_many([b"a"]) == [Stored(1, b"x")]


def test_a_manifest_cut_short_is_an_older_store_or_a_damaged_one(directory, open_rocks):
    """A truncated manifest opens as an older store, with all records of its progress, or as a damaged one."""
    cut(newest(directory, "MANIFEST*"), 0.5)
    try:
        store = open_rocks()
    except StateDamaged:
        return
    assert store.progress() == Progress(0, 0)
    assert list(store.scan()) == []


def test_damage_among_the_records_is_found_when_they_are_read(directory, open_rocks):
    """Damaged records are reported by reads and by scans: a scan that stopped there would look like a smaller store."""
    flip(newest(directory, "*.sst"), 0.5, 0.55)
    store = open_rocks()
    with pytest.raises(StateDamaged, match="reading"):
        store.get_many(KEYS)
    with pytest.raises(StateDamaged, match="reading"):
        list(store.scan())
    store.wipe()
    assert (store.progress(), list(store.scan())) == (Progress(0, 0), [])


@pytest.mark.parametrize("mark", [b"", b"\0" * 15, b"\0" * 17])
def test_a_progress_mark_of_the_wrong_length_is_damage(open_rocks, mark):
    """A progress of the wrong length is damage."""
    store = open_rocks()
    store._db.put(layout.PROGRESS_KEY, mark, write_opt=store._unlogged)
    store.close()
    with pytest.raises(StateDamaged, match=rf"the progress mark has {len(mark)} bytes instead of 16"):
        open_rocks().progress()


def test_a_record_too_short_to_be_one_is_damage(open_rocks):
    """A record that is too short is damage, and the error has its length."""
    store = open_rocks()
    store._db.put(layout.RECORD_PREFIX + b"a", b"\0" * 23, write_opt=store._unlogged)
    with pytest.raises(StateDamaged, match="a record of 23 bytes is shorter than its head"):
        store.get_many([b"a"])


def test_a_store_whose_directory_is_gone_can_be_wiped(open_rocks, directory):
    """A store whose directory was deleted can be wiped, though it cannot flush its records."""
    store = open_rocks()
    store.apply({b"a": Stored(1, b"x")}, Progress(20_001, 1))
    shutil.rmtree(directory / layout.ROCKSDB_DIRECTORY)
    store.wipe()
    store.apply({b"b": Stored(1, b"y")}, Progress(1, 1))
    store.close()
    assert list(open_rocks().scan()) == [(b"b", Stored(1, b"y"))]


def test_a_store_that_cannot_flush_says_so_and_lets_the_directory_go(open_rocks, directory):
    """A store that cannot flush raises an error and releases its directory; the SOW topic has the records."""
    store = open_rocks()
    store.apply({b"a": Stored(1, b"x")}, Progress(20_001, 1))
    shutil.rmtree(directory / layout.ROCKSDB_DIRECTORY)
    with pytest.raises(StateDamaged, match="closing"):
        store.close()
    assert open_rocks().progress() == Progress(0, 0)


@pytest.mark.parametrize("batches", [200, 1400, 3800])
def test_a_killed_writer_leaves_whole_batches_behind(tmp_path, open_rocks, batches):
    """A killed writer may lose its last batches, as nothing is logged; the progress belongs to the remaining ones."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "0")], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            while int(process.stdout.readline()) < batches:
                pass
        finally:
            process.send_signal(signal.SIGKILL)
    store = open_rocks()
    records = {key.decode(): stored.version for key, stored in store.scan()}
    position = store.progress().position
    expected = {f"own {n}": n for n in range(1, position + 1)}
    if position:
        expected |= {f"shared {n}": position for n in range(10)}
    assert records == expected
    assert store.progress().applied_at_ms == position
    # With buffers of 256 KB some batches were flushed on the way, or the test would prove nothing.
    assert position > 0 or batches == 200
    assert not re.search(r"damaged|Corruption", (tmp_path / "0" / layout.ROCKSDB_DIRECTORY / "LOG").read_text())


def damage_every_table(directory: Path, blow) -> None:
    """Change the tables while they are in use: RocksDB keeps the files open."""
    for table in (directory / layout.ROCKSDB_DIRECTORY).glob("*.sst"):
        with suppress(FileNotFoundError):  # A compaction may delete it first.
            blow(table)


BLOWS = {
    "bits are flipped": lambda table: flip_in_place(table, range(1000, 1_000_000, 20_000)),
    "tables are cut": lambda table: cut(table, 0.3),
    "tables are emptied": lambda table: cut(table, 0),
}


def flip_in_place(file: Path, places) -> None:
    """Invert one bit at each of these places."""
    with file.open("r+b") as opened:
        size = file.stat().st_size
        for place in places:
            if place < size:
                opened.seek(place)
                byte = opened.read(1)[0]
                opened.seek(place)
                opened.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("blow", BLOWS.values(), ids=BLOWS)
def test_damage_that_a_compaction_meets_is_told_by_a_later_write(tmp_path, blow):
    """Damage in a compaction, on RocksDB's own threads, is raised by a later write, and a new store works."""
    memory = RocksMemory(1 << 20)
    store = RocksStore(tmp_path / "0", identity="orders.sow/0", memory=memory)
    rng = random.Random(5)

    def write(*positions: int) -> None:
        for position in positions:
            changes = {b"%d" % n: Stored(position, rng.randbytes(500)) for n in range(position % 5, 2_000, 5)}
            store.apply(changes, Progress(position, 1))

    write(*range(1, 21))
    # Damage in a table that a running compaction has read already, and will remove, would never be found.
    busy = ("rocksdb.num-running-compactions", "rocksdb.num-running-flushes", "rocksdb.compaction-pending")
    while any(store._db.property_int_value(name) for name in busy):
        pass
    damage_every_table(tmp_path / "0", blow)
    with pytest.raises(StateDamaged, match="writing"):
        write(*range(21, 500))
    with pytest.raises(StateDamaged, match="writing"):
        write(500)
    store.wipe()
    store.apply({b"a": Stored(1, b"x")}, Progress(1, 1))
    assert list(store.scan()) == [(b"a", Stored(1, b"x"))]
    store.close()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
def test_whichever_bit_flips_the_store_tells_the_truth_or_says_that_it_cannot(tmp_path, seed):
    """A flipped bit in any file leads to the records of an earlier progress, or to an error; never to other records."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    memory = RocksMemory(1 << 20)
    store = RocksStore(tmp_path / "good", identity="orders.sow/0", memory=memory)
    worlds: dict[int, dict[bytes, Stored]] = {0: {}}
    world: dict[bytes, Stored] = {}
    for position in range(1, 9):
        changes = {b"%d" % rng.randrange(300): Stored(position, rng.randbytes(200)) for _ in range(200)}
        store.apply(changes, Progress(position, position))
        store._db.flush(True)
        world = world | changes
        worlds[position] = world
    store.close()
    for turn in range(30):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "good", copy)
        files = [file for file in sorted(copy.rglob("*")) if file.is_file() and file.stat().st_size]
        file = rng.choice(files)
        place = rng.randrange(file.stat().st_size)
        flip_in_place(file, [place])
        where = f"turn {turn}: {file.name} byte {place}"
        try:
            opened = RocksStore(copy, identity="orders.sow/0", memory=memory)
            try:
                expected = worlds[opened.progress().position]
                found = dict(opened.scan())
                by_key = opened.get_many(list(world))
            finally:
                opened._abandon()
                opened._release()
        except StateDamaged:
            pass
        else:
            assert found == expected, where
            assert by_key == [expected.get(key) for key in world], where
        shutil.rmtree(copy)
