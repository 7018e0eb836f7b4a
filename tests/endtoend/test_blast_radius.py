"""Tests with three topics in two worker processes: one topic is ruined, and the others are not affected."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.endtoend.latency import SteadyLoad
from tests.endtoend.ruins import RUINS
from tests.endtoend.world import World
from tests.programs.faults.broker.scrape import quiet_ports, samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.endtoend.ruins import Ruin

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

_RECORDS_PER_S: Final = 40.0
_UNDISTURBED_S: Final = 15.0
_RUINED_S: Final = 20.0
_START_MAX_S: Final = 120.0
_SHOWN_MAX_S: Final = 120.0
_CURED_MAX_S: Final = 150.0
_FACTOR_MAX: Final = 2.0
_MEASURABLE_S: Final = 5.0
_FLOOR_S: Final = 0.5
"""Below this an increase may stem from other work of the machine."""


class Place:
    """Three topics, two workers, and a way to ruin one topic."""

    def __init__(self, bootstrap: str, directory: Path, name: str, ruin: Ruin) -> None:
        self.ruin = ruin
        self.steady = [f"{name}_a", f"{name}_b"]
        self.ports = quiet_ports(3)
        tree = dict(ruin.tree)
        runtime: dict[str, Any] = {"metrics_port": self.ports[0], "session_timeout_s": 10, "transaction_timeout_s": 10}
        if "restore_stall_timeout_s" in tree:
            runtime["internal"] = {"restore_stall_timeout_s": tree.pop("restore_stall_timeout_s")}
        sections = {"processors": tree.pop("processors")} if "processors" in tree else {}
        self.world = World(
            bootstrap,
            directory,
            name,
            others={topic: {"key": ["/id"], "partitions": 4} for topic in self.steady},
            runtime=runtime,
            sections=sections,
            more=tree,
            **ruin.topic,
        )
        # As an operator does: what workers share beside the families is made by it, too.
        command = [sys.executable, "-m", "processor.cli.main", "topics", "apply", "-c", str(self.world.file)]
        subprocess.run(command, check=True, capture_output=True, timeout=_START_MAX_S)
        names = [*self.world.names, *([ruin.pipeline] if ruin.pipeline != name else [])]
        self.workers = [self.world.start(name=names) for _ in range(2)]

    @property
    def ended(self) -> list[str]:
        """Return the last log lines of workers that have ended."""
        return [worker.log()[-600:] for worker in self.workers if worker.process.poll() is not None]

    def metrics(self, name: str) -> list[tuple[int, dict[str, str]]]:
        """Return the ports and labels of a metric of both workers, where it is not 0."""
        found = []
        for port in self.ports[:2]:
            with contextlib.suppress(OSError, http.client.HTTPException):
                found += [(port, labels) for metric, labels, value in samples(port) if metric == name and value]
        return found

    def is_shared(self) -> bool:
        """True if every partition runs, and both workers have some of each topic, so that none moves any more."""
        running = [
            (port, labels["processor"], labels["partition"])
            for port, labels in self.metrics("sowstream_task_state")
            if labels["state"] == "running"
        ]
        topics = [*self.steady, self.world.name]
        return all(
            {partition for _, name, partition in running if name == topic} == {"0", "1", "2", "3"}
            and len({port for port, name, _ in running if name == topic}) == 2
            for topic in topics
        )

    def shown(self) -> set[str]:
        """Return the metrics of the ruined pipeline: reasons of held partitions, or `failed`."""
        held = self.metrics("sowstream_held_partitions")
        states = self.metrics("sowstream_pipeline_state")
        return {labels["reason"] for _, labels in held if labels["processor"] == self.ruin.pipeline} | {
            "failed"
            for _, labels in states
            if (labels["processor"], labels["state"].lower()) == (self.ruin.pipeline, "failed")
        }

    def copied(self) -> int:
        """Count the records that the ruined pipeline has written."""
        return len(self.world.read("sow", self.ruin.pipeline))

    def wait(self, reached: Callable[[], object], what: str, patience_s: float) -> float:
        """Wait for a condition while both workers run; returns the seconds that it took."""
        began_s = time.monotonic()
        while not reached():
            took_s, ended = time.monotonic() - began_s, self.ended
            assert not ended, f"{len(ended)} worker processes ended after {took_s:.1f} s of {what}:\n{ended[0]}"
            assert took_s < patience_s, f"{what} did not happen in {patience_s:g} s"
            time.sleep(0.2)  # Between two looks; the fact decides.
        return time.monotonic() - began_s


@pytest.fixture(params=RUINS, ids=lambda name: name.replace(" ", "-"))
def place(
    request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """Create topics and workers, with all published records merged."""
    ruin = RUINS[request.param](tmp_path, unique)
    ruin.install(monkeypatch)
    made = Place(bootstrap, tmp_path, unique, ruin)
    try:
        yield made
    finally:
        made.world.close()
        ruin.close()


def test_a_ruined_topic_is_held_alone_and_goes_on_when_it_is_cured(place: Place) -> None:
    """The p99 latency of other topics stays within twice of its former value, and no worker process ends."""
    world, ruin = place.world, place.ruin
    ruin.good(world, 1)
    with SteadyLoad(world.bootstrap, place.steady, 4, _RECORDS_PER_S) as load:
        place.wait(lambda: place.copied() >= 4, "merging at first", _START_MAX_S)
        place.wait(place.is_shared, "sharing of the partitions", _START_MAX_S)
        begun_s = time.monotonic()
        place.wait(lambda: load.has_all(begun_s), "merging of the others", _START_MAX_S)
        undisturbed_s = time.monotonic()
        time.sleep(_UNDISTURBED_S)  # Measured.
        ruined_s = time.monotonic()
        before = load.latencies(undisturbed_s, ruined_s)
        print(f"undisturbed {before}")
        ruin.ruin(world)
        expected = ruin.reasons or {"failed"}
        shown_s = place.wait(lambda: expected & place.shown(), f"showing {expected}", _SHOWN_MAX_S)
        time.sleep(max(0.0, ruined_s + _RUINED_S - time.monotonic()))  # Measured.
        until_s = time.monotonic()
        place.wait(lambda: load.has_all(until_s), "merging of the others meanwhile", _CURED_MAX_S)
        before, during = load.latencies(undisturbed_s, ruined_s), load.latencies(ruined_s, until_s)
        for topic in place.steady:
            print(f"{topic}: undisturbed {before[topic]}; ruined {during[topic]}")
        print(f"shown as {expected} after {shown_s:.1f} s")
        for topic in place.steady:
            assert before[topic].p99_s < _MEASURABLE_S, f"undisturbed {before[topic]}: the machine is too busy"
            assert during[topic].p99_s <= max(_FLOOR_S, _FACTOR_MAX * before[topic].p99_s), topic
        if ruin.is_curable:
            copied = place.copied()
            ruin.cure(world)
            ruin.good(world, 2)
            cured_s = place.wait(lambda: place.copied() >= copied + 4, "going on after the cure", _CURED_MAX_S)
            place.wait(lambda: not place.shown(), "being held no more", _CURED_MAX_S)
            print(f"went on {cured_s:.1f} s after its cure")
    assert not place.ended, place.ended[0]
