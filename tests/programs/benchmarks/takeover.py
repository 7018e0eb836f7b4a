"""Measures how long partitions pause when their owner is killed, with standbys and without."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from confluent_kafka import Producer

from processor.config import Config
from processor.config import load as load_settings
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.partitioner import partition_for
from processor.runtime.worker import os_process
from tests.programs.benchmarks.figures import load
from tests.programs.benchmarks.throughput import broker, free_port, print_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS = 8
SESSION_S = 3
TIMEOUT_S = 600.0


class Takeover(NamedTuple):
    """The figures of one kill."""

    outage_s: float
    """Time from the kill to the first record committed in the last of its partitions, less the session timeout."""
    work_s: float
    """The part of it after the successors were assigned their partitions."""
    read: int
    """Number of records that they had to read for it."""


class Machine:
    """A worker with a disk of its own."""

    def __init__(self, settings: Path, number: int) -> None:
        self.log = settings.with_name(f"worker-{number}.log")
        self._port = free_port()
        environment = os_process.whole_environment() | {
            "SOWSTREAM_STATE_DIR": str(settings.with_name(f"disk-{number}")),
            "SOWSTREAM_RUNTIME__METRICS_PORT": str(self._port),
        }
        with self.log.open("wb") as log_file:
            command = [sys.executable, "-m", "processor.cli.main", "worker", "-c", str(settings)]
            self.process = subprocess.Popen(command, stdout=log_file, stderr=log_file, env=environment)

    def metric(self, name: str, labels: str = "") -> dict[int, float]:
        """A metric by partition; empty while the worker does not serve metrics."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as page:
            rows = re.findall(rf'^{name}{{partition="(\d+)".*{labels}.*}} (\S+)$', page.read().decode(), re.MULTILINE)
            return {int(partition): float(value) for partition, value in rows}
        return {}

    def log_entries(self, event: str) -> list[dict[str, Any]]:
        """Every line of an event in the worker's log."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for line in lines if (entry := json.loads(line)).get("event") == event]


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap) as bootstrap:
        takeovers_of = {
            replicas: [measure(bootstrap, arguments.keys, replicas) for _ in range(arguments.rounds)]
            for replicas in (0, 1)
        }
    print_progress(
        "\n| standby_replicas | s without owner, less the session timeout | s after the assignment | records read |"
    )
    print_progress("|---|---|---|---|")
    for replicas, takeovers in takeovers_of.items():
        outage_s, work_s, read = (statistics.median(column) for column in zip(*takeovers, strict=True))
        print_progress(f"| {replicas} | {outage_s:.2f} | {work_s:.2f} | {read:,.0f} |")


def measure(bootstrap: str, keys: int, replicas: int) -> Takeover:
    """Start three workers, kill one of them while they are idle, and send a record to each of its partitions."""
    name = f"takeover{uuid.uuid4().hex[:8]}"
    with family(bootstrap, name, replicas) as (settings, config), contextlib.ExitStack() as cleanup:
        print_progress(f"loading {keys} keys, standby_replicas {replicas}")
        load(bootstrap, f"{name}.publish", keys, keys)
        machines = []
        for number in range(3):
            machines.append(Machine(settings, number))
            cleanup.callback(machines[-1].process.wait)
            cleanup.callback(machines[-1].process.kill)
        wait(lambda: all_running(machines), "owners of all partitions")
        wait(lambda: sum(sum(m.metric("sowstream_consumer_lag_records").values()) for m in machines) == 0, "the work")
        if replicas:
            wait(lambda: all_kept(machines), "standbys of all partitions")
        return kill(bootstrap, name, config, machines)


def all_running(machines: list[Machine]) -> bool:
    """Return whether each partition is processed, and each worker has some partitions."""
    owned = [machine.metric("sowstream_task_state", 'state="running"') for machine in machines]
    return all(owned) and sum(map(len, owned)) == PARTITIONS


def all_kept(machines: list[Machine]) -> bool:
    """Return whether each partition has a standby that is up to date."""
    lags = [machine.metric("sowstream_standby_lag_records") for machine in machines]
    return sum(map(len, lags)) == PARTITIONS and not any(any(lag.values()) for lag in lags)


def kill(bootstrap: str, name: str, config: Config, machines: list[Machine]) -> Takeover:
    """Kill the first worker, and measure the time until its partitions are processed again."""
    partitions = sorted(machines[0].metric("sowstream_task_state", 'state="running"'))
    sow = f"{name}.sow"
    reader = LogReader(config.kafka, group=f"{name}.reader")
    reader.add(Position(sow, *end) for end in Admin(config.kafka).end_offsets(sow, partitions).items())
    reader.read(1, 1.0)
    began = datetime.now().astimezone()
    machines[0].process.kill()
    began_s = time.monotonic()
    publish_one_each(bootstrap, f"{name}.publish", partitions)
    missing = set(partitions)
    while missing:
        if time.monotonic() - began_s > TIMEOUT_S:
            raise SystemExit(f"partitions {missing} did not go on:\n{machines[1].log.read_text()[-3000:]}")
        missing.difference_update(message.partition() for message in reader.read(100, 0.01).messages)
    outage_s = time.monotonic() - began_s
    reader.close()
    successors = machines[1:]
    assigned = [datetime.fromisoformat(line["timestamp"]) for one in successors for line in one.log_entries("assigned")
                if line["partitions"]]  # fmt: skip
    told_s = (min(when for when in assigned if when > began) - began).total_seconds()
    read = sum(
        one_line["read"]
        for one in successors
        for one_line in one.log_entries("restored")
        if datetime.fromisoformat(one_line["timestamp"]) > began
    )
    result = Takeover(outage_s - SESSION_S, outage_s - told_s, read)
    print_progress(
        f"  {len(partitions)} partitions: {result.outage_s:.2f} s, {result.work_s:.2f} s of them after the assignment"
    )
    return result


def publish_one_each(bootstrap: str, topic: str, partitions: list[int]) -> None:
    """Publish one delta for a key of each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 0})
    for partition in partitions:
        key = next(key for key in range(10_000) if partition_for(b"%d" % key, PARTITIONS) == partition)
        producer.produce(topic, json.dumps({"id": key, "status": "moved"}).encode(), b"%d" % key)
    producer.flush()


@contextlib.contextmanager
def family(bootstrap: str, name: str, replicas: int) -> Iterator[tuple[Path, Config]]:
    """Create topics and settings, which are removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="sowstream-takeover-"))
    tree = {
        "application_id": name,
        "kafka": {"bootstrap.servers": bootstrap},
        "state_dir": str(directory / "state"),
        "topics": {name: {"partitions": PARTITIONS, "key": ["/id"]}},
        "runtime": {
            "standby_replicas": replicas,
            "session_timeout_s": SESSION_S,
            "internal": {"write_back_interval_s": 1},
        },
    }
    settings = directory / "sowstream.yaml"
    settings.write_text(yaml.safe_dump(tree))
    config = load_settings(settings)
    admin = Admin(config.kafka)
    admin.create(specs(config))
    try:
        yield settings, config
    finally:
        admin.delete([spec.name for spec in specs(config)])
        shutil.rmtree(directory, ignore_errors=True)


def wait(reached: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not reached():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
