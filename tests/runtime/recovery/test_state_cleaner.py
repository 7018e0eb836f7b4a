"""Tests of the removal of former states: after the delay, at once on a full disk, and never while in use."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import RuntimeConfig, TopicConfig
from processor.errors import DiskFull, StateBehind
from processor.hosting.pipeline import Pipeline
from processor.kafka.admin.questions import Question
from processor.kafka.outage import Renewal
from processor.record import Stored
from processor.runtime.recovery.state_cleaner import Claims, Place, StateCleaner
from processor.runtime.recovery.state_directory import StateDirectory
from processor.store import layout
from processor.store.rocksdb_memory import RocksMemory
from tests.small_disk import small_disks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processor.store.layered_state import LayeredState

DELAY_S = 600.0
MB = 1 << 20
NOW_MS = 3_600_000


class Topics:
    """Answers with the id of a topic, as Kafka does."""

    renewal = Renewal(lambda: None, lambda: None)

    def ask_topic(self, topic: str) -> Question[tuple[str, int]]:
        """Answer at once with the current id."""
        future: Future[tuple[str, int]] = Future()
        future.set_result(("first", 1))
        return Question("looking at the topic", future, 1.0)


class Worker:
    """The states of one pipeline in one process, opened and closed by the group's calls; the test sets the time."""

    def __init__(self, state_dir: Path, name: str) -> None:
        self.later_s = 0.0
        self.owned: set[int] | None = set(range(100))
        self.standbys: frozenset[int] = frozenset()
        self.states: dict[int, LayeredState] = {}
        self.seen_at_close: list[frozenset[int]] = []
        self.name = name
        self.directory = state_dir / "desk" / name
        self.cleaner = StateCleaner(
            state_dir,
            DELAY_S,
            clock_s=lambda: time.monotonic() + self.later_s,
            now_s=lambda: time.time() + self.later_s,
        )
        self.claims = Claims(self)
        kept = lambda: self.claims.partitions | self.standbys  # noqa: E731
        self.cleaner.add(Place(name, self.directory, kept, lambda: self.owned))
        topic = TopicConfig()
        pipeline = Pipeline.of(DeltaMerge, topic, name=name, topic=topic)
        memory, runtime = RocksMemory(MB), RuntimeConfig()
        self.opener = StateDirectory(self.directory, pipeline, runtime, memory, Topics(), self.cleaner.make_room)

    def on_assigned(self, partitions: list[int]) -> None:
        """Open the states of assigned partitions."""
        for partition in partitions:
            self.states[partition] = self.opener.open(partition)

    def on_revoked(self, partitions: list[int]) -> None:
        """Close the states of revoked partitions as a stream thread does, also on a full disk."""
        self.seen_at_close.append(self.claims.partitions)
        for partition in partitions:
            with contextlib.suppress(DiskFull, StateBehind):
                self.states.pop(partition).close(NOW_MS)

    on_lost = on_revoked

    def has(self, partitions: list[int]) -> None:
        """Settle the group: this worker owns these partitions only."""
        gone = [partition for partition in self.states if partition not in partitions]
        self.claims.on_revoked(gone)
        self.claims.on_assigned([partition for partition in partitions if partition not in self.states])

    def restore(self, partition: int, size: int, *, count: int = 1000) -> int:
        """Restore a state to its end; returns the number of records that were read."""
        state, read = self.states[partition], 0
        while state.position < count:
            begin = state.position
            rows = {b"%d" % n: Stored(1, os.urandom(size // count)) for n in range(begin, min(count, begin + 100))}
            try:
                state.restore(rows, begin + len(rows), NOW_MS)
                read += len(rows)
            except StateBehind as error:
                state.heal(error)
        return read

    @property
    def on_disk(self) -> set[int]:
        """List the partitions that have a database."""
        return {int(path.parent.name) for path in self.directory.glob(f"[0-9]*/{layout.ROCKSDB_DIRECTORY}")}

    def removed(self, reason: str) -> float:
        """Read the number of removed states from the metrics."""
        labels = {"processor": self.name, "reason": reason}
        return REGISTRY.get_sample_value("sowstream_state_removed_total", labels) or 0

    def close(self) -> None:
        """Close the open states."""
        self.has([])


@pytest.fixture
def worker(tmp_path: Path, unique: str) -> Iterator[Worker]:
    """Create a worker on the disk of the machine, which has free space."""
    created = Worker(tmp_path, unique)
    yield created
    created.close()


def test_a_state_that_another_worker_has_goes_after_the_delay(worker: Worker):
    """The state of another worker's partition is removed after the delay, and owned states stay."""
    worker.has([0, 1, 2])
    worker.has([0])
    worker.cleaner.look()
    worker.later_s += DELAY_S - 1
    worker.cleaner.look()
    assert worker.on_disk == {0, 1, 2}
    gauge = {
        kind: REGISTRY.get_sample_value("sowstream_state_directories", {"processor": worker.name, "kind": kind})
        for kind in ("used", "former")
    }
    assert gauge == {"used": 1, "former": 2}
    worker.later_s += 2
    worker.cleaner.look()
    assert worker.on_disk == {0}
    assert worker.removed("delay") == 2
    worker.later_s += 10 * DELAY_S
    worker.cleaner.look()
    assert worker.on_disk == {0}
    worker.has([0, 1])
    assert worker.states[1].position == 0


def test_a_state_that_was_there_at_the_start_goes_after_the_delay(worker: Worker, tmp_path: Path):
    """The delay begins with the start of the worker: after a day offline a worker still has its states."""
    worker.has([0, 1])
    worker.close()
    again = Worker(tmp_path, worker.name)
    again.later_s = 86_400.0
    again.cleaner.look()
    again.has([0])
    again.cleaner.look()
    assert again.on_disk == {0, 1}
    again.later_s += DELAY_S + 1
    again.cleaner.look()
    assert again.on_disk == {0}
    again.close()


@pytest.mark.parametrize("owned", [None, set(), {0}])
def test_no_state_goes_while_its_partition_has_no_owner(worker: Worker, owned: set[int] | None):
    """Without an owner, as in a rebalance or while Kafka is away, the partition may return."""
    worker.has([0, 1])
    worker.has([0])
    worker.owned = owned
    worker.cleaner.look()
    worker.later_s += 100 * DELAY_S
    worker.cleaner.look()
    assert worker.on_disk == {0, 1}
    worker.owned = {0, 1}
    worker.cleaner.look()
    assert worker.on_disk == {0}


def test_a_partition_that_comes_back_in_time_restores_nothing(worker: Worker):
    """A partition that returns within the delay finds its state, and the delay begins again later."""
    worker.has([0, 1])
    assert worker.restore(1, 10_000) == 1000
    for _ in range(3):
        worker.has([0])
        worker.cleaner.look()
        worker.later_s += DELAY_S - 1
        worker.cleaner.look()
        worker.has([0, 1])
        assert worker.restore(1, 10_000) == 0
        worker.cleaner.look()


def test_a_state_is_closed_before_its_partition_is_given_up(worker: Worker):
    """The cleaner counts a partition as owned until its state is closed, however long that takes."""
    worker.has([0, 1])
    worker.has([0])
    assert worker.seen_at_close[-1] == {0, 1}
    assert worker.claims.partitions == {0}
    worker.claims.on_lost([0])
    assert worker.seen_at_close[-1] == {0}
    assert worker.claims.partitions == frozenset()


def test_an_open_state_is_not_removed(worker: Worker, tmp_path: Path):
    """A state that another process has open is locked, and its delay begins when it is closed."""
    other = Worker(tmp_path, worker.name)
    other.has([1])
    other.restore(1, 10_000)
    worker.has([0])
    for _ in range(3):
        worker.cleaner.look()
        worker.later_s += DELAY_S + 1
    assert not worker.cleaner.make_room()
    assert worker.on_disk == {0, 1}
    other.close()
    worker.later_s += DELAY_S - 1
    worker.cleaner.look()
    assert worker.on_disk == {0, 1}
    worker.later_s += DELAY_S
    worker.cleaner.look()
    assert worker.on_disk == {0}


def test_a_state_that_another_process_has_used_is_not_old(worker: Worker, tmp_path: Path):
    """A use between two looks is recognised by the time on disk."""
    worker.has([0, 1])
    worker.has([0])
    worker.cleaner.look()
    other = Worker(tmp_path, worker.name)
    other.has([1])
    other.close()
    used_s = time.time() + DELAY_S - 1
    os.utime(worker.directory / "1" / layout.LOCK_FILE, (used_s, used_s))
    worker.later_s += DELAY_S + 1
    worker.cleaner.look()
    assert worker.on_disk == {0, 1}


def test_a_standby_stays(worker: Worker):
    """The state of a standby is kept, also while it is closed for a pause."""
    worker.has([0, 1, 2])
    worker.has([0])
    worker.standbys = frozenset([2])
    worker.cleaner.look()
    worker.later_s += DELAY_S + 1
    worker.cleaner.look()
    assert worker.on_disk == {0, 2}
    assert not worker.cleaner.make_room()


def test_only_our_own_directories_are_removed(worker: Worker, tmp_path: Path):
    """Directories of other applications and topics, other files, and databases without a lock stay."""
    other_topic, other_application = Worker(tmp_path, "quotes"), Worker(tmp_path / "elsewhere", worker.name)
    for one in (worker, other_topic, other_application):
        one.has([0, 1])
        one.close()
    strange = worker.directory / "notes"
    shutil.copytree(worker.directory / "1", strange)
    (worker.directory / "0" / layout.LOCK_FILE).unlink()
    worker.cleaner.look()
    worker.later_s += DELAY_S + 1
    worker.cleaner.look()
    assert worker.on_disk == {0}
    assert (strange / layout.ROCKSDB_DIRECTORY / "CURRENT").exists()
    assert other_topic.on_disk == other_application.on_disk == {0, 1}


def test_a_removal_that_was_interrupted_is_finished(worker: Worker):
    """The rest of an interrupted removal goes with the next one, and does not disturb an open."""
    worker.has([0, 1])
    worker.restore(1, 10_000)
    worker.has([0])
    database = worker.directory / "1" / layout.ROCKSDB_DIRECTORY
    shutil.copytree(database, database.with_name(layout.FORMER_DIRECTORY))
    worker.has([0, 1])
    assert worker.states[1].position == 1000
    worker.has([0])
    assert worker.cleaner.make_room()
    assert [path.name for path in (worker.directory / "1").iterdir()] == [layout.LOCK_FILE]


def test_the_rest_of_a_removal_is_a_former_state_and_goes_when_its_partition_is_opened(worker: Worker):
    """A process that was killed after it had moved a database aside leaves it to the next look, or the next owner."""
    for finish in (worker.cleaner.make_room, lambda: worker.has([0, 1])):
        worker.has([0, 1])
        worker.restore(1, 10_000)
        worker.has([0])
        database = worker.directory / "1" / layout.ROCKSDB_DIRECTORY
        former = database.rename(database.with_name(layout.FORMER_DIRECTORY))
        assert finish() is not False
        assert not former.exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Create a file system of 16 MB."""
    with small_disks(tmp_path) as make:
        yield make(16 * MB).path


def test_where_room_is_short_former_states_go_at_once(disk: Path, unique: str):
    """On a full disk former states are removed at once, the longest unused first, and no more than needed."""
    worker = Worker(disk, unique)
    for partition in range(4):
        worker.has([partition])
        worker.restore(partition, 2 * MB)
        worker.cleaner.look()
        worker.later_s += 1
    worker.has([9])  # What is open may be compacted meanwhile.
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - MB))
    worker.owned = None
    worker.cleaner.look()
    assert worker.on_disk == {0, 1, 2, 3, 9}  # Partitions are moving.
    worker.owned = set(range(10))
    worker.cleaner.look()
    assert worker.on_disk == {1, 2, 3, 9}
    assert worker.removed("room") == 1
    worker.close()


def test_a_full_disk_drops_former_states_before_it_stops_anything(disk: Path, unique: str):
    """A write that finds the disk full removes a former state; without one it raises."""
    worker = Worker(disk, unique)
    for partition in range(3):
        worker.has([partition])
        worker.restore(partition, 2 * MB)
    worker.has([5])
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - 2 * MB))
    assert 2000 <= worker.restore(5, 3 * MB, count=2000) < 6000
    assert {key for key, _ in worker.states[5].scan(None, 10_000)} == {b"%d" % n for n in range(2000)}
    assert 5 in worker.on_disk
    assert worker.removed("room") >= 1
    worker.has([6])
    with pytest.raises(DiskFull):
        worker.restore(6, 20 * MB)
    assert worker.on_disk == {6}
    assert worker.removed("room") == 4


@pytest.mark.long
def test_ten_rollouts_on_a_disk_for_one_and_a_half_shares(tmp_path: Path, unique: str):
    """Each rollout moves half of the partitions away and others in, and the disk never stops a worker."""
    size, share = 2 * MB, 4
    with small_disks(tmp_path) as make:
        path = make(int(1.5 * share * size)).path
        worker = Worker(path, unique)
        least = shutil.disk_usage(path).free
        for rollout in range(10):
            worker.has([(2 * rollout + n) % 12 for n in range(share)])
            for partition in worker.states:
                worker.restore(partition, size)
                least = min(least, shutil.disk_usage(path).free)
                worker.cleaner.look()
            assert set(worker.states) <= worker.on_disk
        assert worker.removed("room") >= 10
        print(f"least room {least / MB:.1f} MB of {1.5 * share * size / MB:.0f}, removed {worker.removed('room'):.0f}")
        worker.close()
