"""Tests of workers that join, leave and stand still while records flow: partitions that stay keep working."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.endtoend.crashing_worker import STUCK
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import Worker, World, random_commands
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.long]

PARTITIONS = 8
PAUSE_MAX_S = 20.0
"""Far above the observed pauses, also on a busy machine: a partition that is not read at all pauses for longer.

A rebalance that stops all members lets go of all partitions, and none is untouched.
"""


class Move(NamedTuple):
    """A partition that was assigned to a worker or revoked from it."""

    at_s: float
    partition: int
    has_come: bool


def moves(worker: Worker) -> list[Move]:
    """Read the assignments from a worker's log."""
    found = []
    for line in worker.file.read_text(errors="replace").splitlines():
        if '"event": "assigned"' in line or '"event": "let go"' in line:
            told = json.loads(line)
            at_s = datetime.fromisoformat(told["timestamp"]).timestamp()
            found += [Move(at_s, partition, told["event"] == "assigned") for partition in told["partitions"]]
    return found


def owned(worker: Worker) -> set[int]:
    """Return the partitions that a worker owns now."""
    has = {move.partition: move.has_come for move in moves(worker)}
    return {partition for partition, is_ours in has.items() if is_ours}


@contextmanager
def load(world: World, records_per_s: int) -> Iterator[None]:
    """Publish to every partition all the time, each key to its own partition."""
    done = threading.Event()

    def feed() -> None:
        producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 5, "partitioner": "murmur2_random"})
        number = 0
        while not done.wait(0.02):
            for _ in range(records_per_s // 50):
                number += 1
                key = number % 400
                value = json.dumps({"id": key, "n": number}).encode()
                producer.produce(f"{world.name}.publish", value, b"%d" % key)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Arrivals:
    """The arrival times of committed SOW records of each partition, as an independent reader sees them."""

    def __init__(self, world: World) -> None:
        self.times_s: dict[int, list[float]] = defaultdict(list)
        self._done = threading.Event()
        self._reader = Consumer({"bootstrap.servers": world.bootstrap, "group.id": "arrivals",
                                 "isolation.level": "read_committed", "fetch.wait.max.ms": 20})  # fmt: skip
        self._reader.assign([TopicPartition(f"{world.name}.sow", number, 0) for number in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._read, name="arrivals")
        self._thread.start()

    def _read(self) -> None:
        while not self._done.is_set():
            messages = self._reader.consume(10_000, 0.02)
            now_s = time.time()
            for partition in {message.partition() for message in messages if message.error() is None}:
                self.times_s[partition].append(now_s)

    def close(self) -> None:
        """Stop reading."""
        self._done.set()
        self._thread.join()
        self._reader.close()

    def pause_s(self, partition: int, from_s: float, to_s: float) -> float:
        """Return the longest time without a record within a period."""
        inside = [from_s, *(at_s for at_s in self.times_s[partition] if from_s < at_s < to_s), to_s]
        return max(later - earlier for earlier, later in itertools.pairwise(inside))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_that_do_not_move_keep_committing(
    bootstrap: str, tmp_path: Path, unique: str, protocol: str
) -> None:
    """From one worker to four, two and one, under load, no record is lost or merged twice."""
    world = World(
        bootstrap, tmp_path, unique, kafka={"group.protocol": protocol}, partitions=PARTITIONS,
        runtime={"session_timeout_s": 20},  # No worker dies: a busy one is to lose no partition.
    )  # fmt: skip
    pauses: dict[str, tuple[int, float]] = {}

    def stretch(name: str, change: Callable[[], object], workers: int) -> None:
        """Make a change and wait for its end; then measure the partitions that did not move."""
        began_s = time.time()
        change()
        share = PARTITIONS // workers
        world.wait(lambda: sorted(len(owned(worker)) for worker in world.workers)[-workers:] == [share] * workers, name)
        time.sleep(2.0)  # The last that came are restored meanwhile, under load.
        ended_s = time.time()
        moved = {move.partition for worker in world.workers for move in moves(worker) if move.at_s > began_s}
        untouched = set(range(PARTITIONS)) - moved
        longest_s = max((arrivals.pause_s(partition, began_s, ended_s) for partition in untouched), default=0.0)
        pauses[name] = len(untouched), round(longest_s, 3)

    try:
        world.start(name=unique)
        with load(world, 2_000):
            arrivals = Arrivals(world)
            try:
                world.wait(lambda: len(arrivals.times_s) == PARTITIONS, "the first worker merging")
                quiet_s = time.time()
                time.sleep(3.0)  # Measured: a busy machine pauses while nothing changes, too.
                quiet_pause_s = max(arrivals.pause_s(number, quiet_s, time.time()) for number in range(PARTITIONS))
                stretch("1 to 4", lambda: [world.start(name=unique) for _ in range(3)], 4)
                stretch("4 to 2", lambda: [stopped(worker) for worker in world.workers[2:]], 2)
                stretch("2 to 1", lambda: stopped(world.workers[1]), 1)
            finally:
                arrivals.close()
        print(protocol, pauses)
        world.settle()
        check(world)
        assert [untouched for untouched, _ in pauses.values()] == [2, 4, 4], pauses
        pause_max_s = max(PAUSE_MAX_S, 3 * quiet_pause_s)
        assert max(longest_s for _, longest_s in pauses.values()) < pause_max_s, (pauses, quiet_pause_s)
    finally:
        world.close()


def stopped(worker: Worker) -> None:
    """Stop a worker properly."""
    assert worker.stop() == 0, worker.log()


def test_a_stuck_worker_logs_its_stacks_and_ends(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Its heartbeats would keep its partitions for ever; the next worker finishes its work."""
    world = World(bootstrap, tmp_path, unique, runtime={"stuck_timeout_s": 15})
    try:
        world.publish(random_commands(61, 5_000, 100))
        worker = world.start(name=unique, crash=(STUCK, 3))
        assert worker.process.wait(timeout=PATIENCE_S) == 1, worker.log()
        said = worker.file.read_text()
        assert '"event": "a thread is stuck' in said
        assert f'"thread": "{unique}"' in said
        assert "in hang" in said
        world.start(name=unique)
        world.settle()
        check(world)
    finally:
        world.close()


def test_static_members_are_bounced_without_a_rebalance(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """One of two workers restarts within its session, and the other one keeps its partitions."""
    world = World(bootstrap, tmp_path, unique, runtime={"static_membership": True, "session_timeout_s": 60})
    try:
        stays = world.start(name=unique)
        world.wait(lambda: len(moves(stays)) == 4, "the first worker taking all")
        bounced = world.start(name=unique)
        world.wait(lambda: len({move.partition for move in moves(bounced)}) == 2, "the second worker taking its share")
        world.wait(lambda: len(moves(stays)) == 6, "the first one letting go of it")
        for turn in range(3):
            world.publish(random_commands(40 + turn, 3_000, 100))
            assert bounced.stop() == 0, bounced.log()
            world.publish(random_commands(50 + turn, 3_000, 100))
            bounced = world.start(name=unique)
            world.wait(lambda worker=bounced: worker.log().count('"event": "restored"') >= 2, "its return")
        world.settle()
        check(world)
        assert len(moves(stays)) == 6, moves(stays)
    finally:
        world.close()
