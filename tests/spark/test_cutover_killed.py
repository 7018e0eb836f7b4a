"""Moves a merge to Spark and back under a feed; each command is killed at each of its points, and repeated."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.testing import ProcessorTestDriver
from processor.topics.family import control_spec
from tests.endtoend.world import World, random_commands

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

PARTITIONS = 2
PATIENCE_S = 600
TAKEOVER_POINTS = (
    "claim", "before commit 1", "drain", "fence", "before commit 1", "begin", "in a micro-batch", "verify",
    "before commit 1", "done",
)  # fmt: skip
"""Each run goes on where the one before died, so that its first commit is the next one of the move."""
HANDBACK_POINTS = ("claim", "before commit 1", "wait", "drain", "in a micro-batch", "return", "before commit 1", "done")


class Feed:
    """Publishes commands at a low rate until it is stopped."""

    def __init__(self, world: World, seed: int) -> None:
        self.published = []
        self._world, self._stop = world, threading.Event()
        self._commands = iter(random_commands(seed, 100_000, 60))
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            batch = [next(self._commands) for _ in range(10)]
            self._world.publish(batch)
            self.published += batch


class Command:
    """A command in its own process group: Python and the JVM."""

    def __init__(self, world: World, command: str, point: str = "") -> None:
        self.log = world.directory / f"{command}.log"
        arguments = [command, world.name, str(world.file), str(world.directory / "checkpoints"), point]
        with self.log.open("ab") as log:
            log.write(f"\n--- {command} {point}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.cutting_over_job", *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ended(self) -> int:
        """Wait for the end of the process; the rest of its group is killed."""
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.kill()

    def text(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """Send SIGKILL to Python and the JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def world(bootstrap, unique, tmp_path) -> Iterator[World]:
    """A family with `source_header`, so that each record differs."""
    Admin({"bootstrap.servers": bootstrap}).create([control_spec()])
    world = World(bootstrap, tmp_path, unique, partitions=PARTITIONS, source_header=True)
    yield world
    world.close()


def killed(world: World, command: str, points) -> None:
    """Run a command once for each point, at which it dies, and then to its end."""
    for point in points:
        run = Command(world, command, point)
        assert run.ended() == -signal.SIGKILL, f"{command} at {point!r}:\n{run.text()}"
    run = Command(world, command)
    assert run.ended() == 0, run.text()


def grown(world: World, admin: Admin, process: Command | None = None, by: int = 60) -> None:
    """Wait until this many records more are on the SOW topic."""
    count = lambda: sum(admin.end_offsets(f"{world.name}.sow", range(PARTITIONS)).values())  # noqa: E731
    wanted, until_s = count() + by, time.monotonic() + PATIENCE_S
    while count() < wanted:
        assert process is None or process.process.poll() is None, process.text()
        assert time.monotonic() < until_s
        time.sleep(0.05)


def expected(world: World, commands, role: str):
    """The records of one worker, by partition."""
    records = {}
    for partition in range(PARTITIONS):
        driver = ProcessorTestDriver(
            DeltaMerge, TopicConfig(source_header=True), name=world.name, partition=partition, now_ms=1
        )
        driver.pipe_batch([command for command in commands if partition_for(command[0], PARTITIONS) == partition])
        driver.commit()
        # The input has markers of no transaction, so that offsets are those of the driver.
        records[partition] = [
            (r.key, r.value, tuple(sorted((name, text.decode()) for name, text in r.headers or ())))
            for r in driver.read_output(role)
        ]
    return records


def audit(world: World, commands) -> int:
    """Make sure that each topic has every record of one worker, in order; returns the number of repeats."""
    repeats = 0
    for role in ("sow", "delta"):
        seen = world.read(role)
        for partition, records in expected(world, commands, role).items():
            places = {record: place for place, record in enumerate(records)}
            assert len(places) == len(records)
            reached = place = -1
            for record in (record for record in seen if record.partition == partition):
                place = places[record.key, record.value, tuple(sorted(record.headers.items()))]
                assert place <= reached + 1, f"{role} {partition}: a record is missing before offset {record.offset}"
                repeats += place <= reached
                reached = max(reached, place)
            assert place == len(records) - 1, f"{role} {partition}: the last record is not the last one's"
    return repeats


def test_a_merge_moves_to_spark_and_back_under_a_feed_and_kills(world) -> None:
    """Both commands die at each point and the merge on Spark once, and a worker and Spark write each update in order.

    The worker runs all the time: it leaves, waits and goes on by itself. Only records of the micro-batches of Spark
    that were interrupted or repeated come again.
    """
    admin = Admin(world.config.kafka)
    worker = world.start(name=world.name)
    with Feed(world, 17) as feed:
        grown(world, admin)
        killed(world, "takeover", TAKEOVER_POINTS)
        merge = Command(world, "merge")
        try:
            grown(world, admin, merge, by=200)
            merge.kill()
            merge = Command(world, "merge")
            grown(world, admin, merge, by=200)
            killed(world, "handback", HANDBACK_POINTS)
            assert merge.ended() == 0, merge.text()
        finally:
            merge.kill()
        grown(world, admin)
    world.settle()
    assert worker.stop() == 0
    repeats = audit(world, feed.published)
    sent = sum(admin.end_offsets(f"{world.name}.sow", range(PARTITIONS)).values())
    print(f"{len(feed.published)} commands, {sent} SOW records, {repeats} repeats")
