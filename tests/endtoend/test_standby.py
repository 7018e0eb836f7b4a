"""Workers with a disk each: a standby takes over and restores next to nothing; former states are removed."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.endtoend.oracle import last_per_key
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import World, random_commands
from tests.programs.faults.broker.ports import quiet_port
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.endtoend.world import Worker


pytestmark = [pytest.mark.broker, pytest.mark.long]


class Machines:
    """Workers with a disk and a metrics page each, as on several machines."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self._monkeypatch = monkeypatch
        self._ports: dict[Worker, int] = {}

    def start(self, command: str = "worker", name: str | None = None) -> Worker:
        """Start one more machine."""
        port = quiet_port()
        self._monkeypatch.setenv("SOWSTREAM_RUNTIME__METRICS_PORT", str(port))
        disk = self.world.directory / f"disk-{len(self._ports)}"
        worker = self.world.start(command, name, state_dir=disk)
        self._ports[worker] = port
        return worker

    def metric(self, worker: Worker, name: str, label: str) -> dict[str, float]:
        """Read one metric of a living worker, by the value of one of its labels."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._ports[worker]}/metrics", timeout=PATIENCE_S
            ) as answer:
                text = answer.read().decode()
        except OSError:  # It has not come so far.
            return {}
        rows = re.findall(rf'^{name}\{{[^}}]*{label}="([^"]*)"[^}}]*\}} (\S+)$', text, re.MULTILINE)
        return {value: float(number) for value, number in rows}

    def lags(self) -> dict[str, float]:
        """Read the lag of each partition's standby on any worker."""
        return {
            partition: lag
            for worker in self._ports
            if worker.process.poll() is None
            for partition, lag in self.metric(worker, "sowstream_standby_lag_records", "partition").items()
        }

    def wait_for_standbys(self) -> None:
        """Wait until each partition has a standby that is up to date."""
        self.world.wait(lambda: self.lags() == dict.fromkeys("0123", 0.0), "a standby of each partition")


@pytest.fixture
def machines(
    bootstrap: str, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Machines]:
    """Create a family whose workers keep one standby of each partition, with the given group protocol."""
    kafka = {"group.protocol": getattr(request, "param", "classic")}
    world = World(bootstrap, tmp_path, unique, runtime={"standby_replicas": 1, "session_timeout_s": 10}, kafka=kafka)
    yield Machines(world, monkeypatch)
    world.close()


def takeovers(worker: Worker) -> dict[int, int]:
    """Return the partitions that a worker took over from standbys, with the number of records to read."""
    taken: dict[int, int] = {}
    for line in worker.file.read_text().splitlines():
        said = json.loads(line) if line.startswith("{") else {}
        if said.get("event") == "took over from standby":
            taken[said["partition"]] = -1
        elif said.get("event") == "restored" and taken.get(said["partition"]) == -1:
            taken[said["partition"]] = said["read"]
    return taken


def test_a_standby_takes_over_and_reads_next_to_nothing(machines: Machines) -> None:
    """After an owner is killed its partitions go to their standbys, and merging continues."""
    world = machines.world
    first, second = machines.start(), machines.start()
    world.publish(random_commands(51, 8_000, 2_000))
    world.settle()
    machines.wait_for_standbys()
    first.kill()
    world.publish(random_commands(52, 4_000, 2_000))
    world.settle()
    taken = takeovers(second)
    assert len(taken) == 2, second.log()
    assert all(0 <= read < 100 for read in taken.values()), taken
    assert machines.metric(second, "sowstream_takeovers_total", "how")["standby"] == 2
    check(world)


@pytest.mark.parametrize("machines", ["consumer"], indirect=True)
def test_a_standby_takes_over_where_kafka_runs_the_group(machines: Machines) -> None:
    """With the newer protocol the brokers assign, and partitions move as the worker has forecast."""
    world = machines.world
    first, second = machines.start(), machines.start()
    world.publish(random_commands(57, 4_000, 1_000))
    world.settle()
    machines.wait_for_standbys()
    assert first.stop() == 0, first.log()
    world.publish(random_commands(58, 2_000, 1_000))
    world.settle()
    taken = takeovers(second)
    assert len(taken) == 2, second.log()
    assert all(0 <= read < 100 for read in taken.values()), taken
    check(world)


def test_the_next_owner_is_the_one_with_the_standby(machines: Machines) -> None:
    """One of three workers is killed under load over many keys: the new owners had standbys."""
    world = machines.world
    victim, *others = [machines.start() for _ in range(3)]
    world.publish([(b"%d" % key, {"id": key, "n": 0, "text": "x" * 50}, {}) for key in range(100_000)])
    world.settle()
    machines.wait_for_standbys()
    owned = {int(partition) for partition in machines.metric(victim, "sowstream_task_state", "partition")}
    world.publish(random_commands(53, 20_000, 100_000))
    victim.kill()
    world.publish(random_commands(54, 20_000, 100_000))
    world.settle()
    taken = {partition: read for worker in others for partition, read in takeovers(worker).items()}
    assert taken.keys() == owned
    assert all(0 <= read < 12_000 for read in taken.values()), f"{taken}: a quarter of the keys is 25,000"
    check(world)


def test_a_conflated_topic_has_standbys_too(machines: Machines) -> None:
    """Every processor with a state that is restored from its SOW topic has standbys."""
    world = machines.world
    world.start("worker")
    first, second = (machines.start("conflate", world.conflated) for _ in range(2))
    world.publish(random_commands(55, 4_000, 500))
    world.wait(lambda: world.processed(world.conflated, f"{world.name}.sow"), "conflating everything")
    machines.wait_for_standbys()
    first.kill()
    world.publish(random_commands(56, 2_000, 500))
    world.wait(lambda: len(takeovers(second)) == 2, "the takeover")
    world.settle()
    world.wait(lambda: world.processed(world.conflated, f"{world.name}.sow"), "conflating everything")
    assert all(0 <= read < 100 for read in takeovers(second).values()), takeovers(second)
    assert last_per_key(world.read("sow", world.conflated)) == last_per_key(world.read("sow"))


DELAY_S = 4.0


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a family of four partitions whose workers remove former states after seconds."""
    made = World(bootstrap, tmp_path, unique, runtime={"internal": {"state_cleanup_delay_s": DELAY_S}})
    yield made
    made.close()


def test_a_disk_has_the_partitions_of_its_worker_alone(world: World, tmp_path: Path):
    """After a worker joined, and after it left, the records are those of one worker."""
    disks = [tmp_path / "disk-0", tmp_path / "disk-1"]

    def on_disk(number: int) -> set[str]:
        """List the partitions in a worker's directory."""
        place = disks[number] / f"app-{world.name}" / world.name
        return {path.parent.name for path in place.glob("*/rocksdb")}

    world.publish(random_commands(20, 2_000, 100))
    first = world.start(state_dir=disks[0])
    world.settle()
    assert on_disk(0) == set("0123")
    second = world.start(state_dir=disks[1])
    world.wait(lambda: len(on_disk(1)) == 2, "the second worker's partitions")
    world.wait(lambda: len(on_disk(0)) == 2, "removing what moved away")
    assert on_disk(0) | on_disk(1) == set("0123")
    world.wait(lambda: "former state removed" in first.log(), "the line of the removal")
    world.publish(random_commands(21, 2_000, 100))
    world.settle()
    second.stop()
    world.wait(lambda: on_disk(0) == set("0123"), "taking all partitions back")
    world.settle()
    check(world)
