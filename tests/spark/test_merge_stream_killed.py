"""Kills a streaming merge, and lets one take over from workers and hand back to them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.testing import ProcessorTestDriver
from tests.endtoend.world import World, random_commands

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

PARTITIONS = 4
PATIENCE_S = 600


class Job:
    """Spark in its own process."""

    def __init__(self, world: World, *, cores: int, offsets: int) -> None:
        self._world = world
        self.log = world.directory / "job.log"
        arguments = [world.name, str(world.file), str(world.directory / "checkpoint"), str(cores), str(offsets)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.merging_job", *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, reached, what) -> None:
        """Wait for a condition, checking it often."""
        until_s = time.monotonic() + PATIENCE_S
        while not reached():
            assert self._process.poll() is None, self.log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < until_s, f"{what} did not happen"
            time.sleep(0.02)

    def kill(self) -> None:
        """Send SIGKILL to Python and to the JVM at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def world(bootstrap, unique, tmp_path):
    """A family with `source_header`, so that each record differs."""
    made = World(bootstrap, tmp_path, unique, source_header=True)
    yield made
    made.close()


def _sent(admin, world, role="sow"):
    return sum(admin.end_offsets(f"{world.name}.{role}", range(PARTITIONS)).values())


def _expected(world, commands, role):
    """The records of one worker, by partition."""
    told = {}
    for partition in range(PARTITIONS):
        driver = ProcessorTestDriver(
            DeltaMerge, TopicConfig(source_header=True), name=world.name, partition=partition, now_ms=1
        )
        driver.pipe_batch([command for command in commands if partition_for(command[0], PARTITIONS) == partition])
        driver.commit()
        told[partition] = [
            (r.key, r.value, {name: said.decode() for name, said in r.headers or ()}) for r in driver.read_output(role)
        ]
    return told


def test_a_job_killed_five_times_loses_nothing_and_repeats_the_same_records(world) -> None:
    """A job killed while it writes, on one core or two, continues without loss, and repeats the same records."""
    commands = random_commands(11, 6000, 40)
    world.publish(commands)
    admin, rng = Admin(world.config.kafka), random.Random(11)
    expected = {role: _expected(world, commands, role) for role in ("sow", "delta")}
    total = sum(len(records) for records in expected["sow"].values())
    for kill in range(5):
        before = _sent(admin, world)
        job = Job(world, cores=1 + kill % 2, offsets=600)
        try:
            wanted = before + rng.randrange(1, 900)
            job.wait(lambda wanted=wanted: _sent(admin, world) >= wanted, "writing")
        finally:
            job.kill()
    job = Job(world, cores=2, offsets=600)
    try:
        done = lambda: _is_whole(world, expected)  # noqa: E731
        job.wait(lambda: _sent(admin, world) >= total and _sent(admin, world, "delta") >= total and done(), "the end")
    finally:
        job.kill()
    repeats = 0
    for role, by_partition in expected.items():
        seen = world.read(role)
        for partition, records in by_partition.items():
            places = {(key, value, tuple(sorted(said.items()))): at for at, (key, value, said) in enumerate(records)}
            assert len(places) == len(records)
            reached = -1
            for record in (record for record in seen if record.partition == partition):
                at = places[record.key, record.value, tuple(sorted(record.headers.items()))]
                assert at <= reached + 1, f"{role} {partition}: a record is missing before offset {record.offset}"
                repeats += at <= reached
                reached = max(reached, at)
                last = at
            assert last == len(records) - 1, "the last record is the last one's"
    print(f"{repeats} records came again")
    assert repeats, "no kill hit a micro-batch half-way"


def _is_whole(world, expected):
    """Return whether the last record of each partition is on the topic."""
    seen = {partition: record for record in world.read("delta") for partition in [record.partition]}
    return all(
        not records or seen[partition].headers.get("source") == records[-1][2]["source"]
        for partition, records in expected["delta"].items()
    )


def _commits(world):
    return sum(path.name.isdigit() for path in (world.directory / "checkpoint" / "commits").iterdir())


def test_workers_hand_over_to_spark_and_take_back(world) -> None:
    """From workers to Spark and back, versions continue, and duplicates of records merged by either are recognised."""
    commands = random_commands(3, 900, 30)
    numbered = [(b"1", {"id": 1, "x": n}, {"client": "c", "sequence": str(n)}) for n in range(6)]
    parts = [commands[:300] + numbered[:3], numbered[1:5] + commands[300:600], numbered[2:] + commands[600:]]
    admin = Admin(world.config.kafka)
    group = f"app-{world.name}.{world.name}"
    world.publish(parts[0])
    worker = world.start()
    world.settle()
    worker.stop()
    done = [command for part in parts[:2] for command in part]
    expected = _expected(world, done, "sow")
    job = Job(world, cores=2, offsets=100)
    try:
        world.publish(parts[1])
        total = sum(len(records) for records in expected.values())
        job.wait(lambda: len(world.read("sow")) >= total, "merging on Spark")
        commits = _commits(world)
        # Then Kafka has all of the micro-batch that wrote the last record, marks included.
        job.wait(lambda: _commits(world) > commits + 1, "the next micro-batches")
    finally:
        job.kill()
    ends = admin.end_offsets(f"{world.name}.publish", range(PARTITIONS))
    places = [TopicPartition(f"{world.name}.publish", partition, end) for partition, end in ends.items()]
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": group})
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    world.publish(parts[2])
    world.forget_state()
    worker = world.start()
    world.settle()
    worker.stop()
    expected = _expected(world, done + parts[2], "sow")
    seen = world.read("sow")
    for partition, records in expected.items():
        own = [(r.key, r.value, r.headers) for r in seen if r.partition == partition]
        assert own == records, partition
