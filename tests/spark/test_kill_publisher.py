from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from processor.kafka.admin.admin import Admin
from tests.endtoend.world import World
from tests.programs.faults.broker.ports import quiet_port

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.publish.sequence import PLANNED_ROWS_BITS

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1800)]

ROWS = 12_000
KEYS = 300
BATCH_ROWS = 1500
KILLS = 5
PARTITIONS = 4
PATIENCE_S = 900


class Job:
    """The streaming job in its own processes: Python, and the Java that it starts."""

    def __init__(self, world: World, source: str, cores: int) -> None:
        self._log = world.directory / f"job-{time.monotonic_ns()}.log"
        checkpoint = str(world.directory / "checkpoint")
        command = [world.bootstrap, source, world.name, checkpoint, str(BATCH_ROWS), str(cores)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.publishing_job", *command],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill all processes at once, as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        """The end of the job's output."""
        return self._log.read_text(errors="replace")[-4000:]


def _written(world: World) -> int:
    """The number of records on the input topic."""
    return sum(Admin(world.config.kafka).end_offsets(f"{world.name}.publish", range(PARTITIONS)).values())


def _fill(bootstrap: str, source: str, rng: random.Random) -> dict[str, list[int]]:
    """Write the rows that the job should publish; returns the numbers of each key, in order."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(source, PARTITIONS, 1)]).values():
        made.result(120)
    producer = Producer({"bootstrap.servers": bootstrap})
    numbers = defaultdict(list)
    for number in range(ROWS):
        key = f"k{rng.randrange(KEYS)}"
        numbers[key].append(number)
        producer.produce(source, json.dumps({"id": key, "n": number}), key)
    assert producer.flush(120) == 0
    return numbers


def _kill_within_a_batch(world: World, job: Job, rng: random.Random) -> None:
    """Kill the job in the middle of a batch, the first one that it writes or a later one."""
    begun = _written(world)
    # The batch that the last one was killed in is written again from its first row.
    until = begun + rng.randrange(2) * BATCH_ROWS + rng.randrange(BATCH_ROWS // 5, BATCH_ROWS * 3 // 4)
    deadline = time.monotonic() + PATIENCE_S
    while (there := _written(world)) < until:
        assert job.process.poll() is None, job.log()
        assert time.monotonic() < deadline, f"{there} of {until} records in {PATIENCE_S} s\n{job.log()}"
        time.sleep(0.005)  # Between two looks; the fact decides.
    job.kill()


def _duplicates(port: int) -> int:
    """The number of records that the worker has dropped."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if "events_total" in line and '"duplicate"' in line))


def test_job_killed_within_five_batches_loses_and_doubles_nothing(bootstrap, tmp_path, unique, random_seed) -> None:
    """After kills within batches and restarts with other cores, each row is merged once, in the order of its key.

    The input topic has complete and partial batches twice, and the worker has dropped exactly the duplicates.
    """
    rng = random.Random(random_seed)
    source, port = f"{unique}_source", quiet_port()
    world = World(bootstrap, tmp_path, unique, runtime={"metrics_port": port})
    job = None
    try:
        numbers = _fill(bootstrap, source, rng)
        world.start()
        halves = []
        for kill in range(KILLS):
            job = Job(world, source, cores=1 + kill % 2)
            _kill_within_a_batch(world, job, rng)
            halves.append(_last_batch(world))
        job = Job(world, source, cores=2)
        assert job.process.wait(PATIENCE_S) == 0, job.log()
        world.settle()

        repeats = _written(world) - ROWS
        print(f"{repeats} repeats, killed after {halves} of {BATCH_ROWS} rows of a batch")
        assert all(0 < rows < BATCH_ROWS for rows in halves)
        assert repeats > 0
        world.wait(lambda: _duplicates(port) == repeats, f"dropping {repeats} repeats")
        assert world.read("dlq") == []
        latest = {record.key.decode(): record for record in world.read("sow")}
        versions = {key: int(record.headers["version"]) for key, record in latest.items()}
        assert versions == {key: len(of_key) for key, of_key in numbers.items()}
        merged = defaultdict(list)
        for record in world.read("delta"):
            merged[record.key.decode()].append(json.loads(record.value)["n"])
        assert merged == numbers
    finally:
        if job is not None and job.process.poll() is None:
            job.kill()
        world.close()
        Admin(world.config.kafka).delete([source])


def _last_batch(world: World) -> int:
    """The number of rows on the input topic from the last batch that was begun."""
    rows = defaultdict(set)
    for record in world.read("publish"):
        number = int(record.headers["sequence"])
        rows[number >> PLANNED_ROWS_BITS].add((record.headers["client"], number))
    return len(rows[max(rows)])
