"""Prometheus reads a worker and a conflater, and answers the queries of their dashboards."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from processor.trial.broker.server import HOST
from tests.deploy.test_monitoring import panels
from tests.endtoend.world import World, random_commands
from tests.programs.faults.broker.scrape import quiet_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian's package)"),
]

NEEDS_TROUBLE = ("sowstream_transactions_aborted_total", "sowstream_standby_lag_records", '"delivered_early"')
"""Parts of queries that have no answer where nothing is wrong, or there are no standbys."""

GOES = "sowstream_gauge metric name should not include type"
"""The complaint about a metric that the next release removes."""


@contextmanager
def prometheus(directory: Path, port: int, targets: list[int]) -> Iterator[None]:
    """Run a Prometheus that reads these ports each second."""
    directory.mkdir()
    static = [{"targets": [f"{HOST}:{target}" for target in targets]}]
    jobs = [{"job_name": "sowstream", "scrape_interval": "1s", "static_configs": static}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": jobs}))
    command = ["prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={directory}/data",
               f"--web.listen-address={HOST}:{port}"]  # fmt: skip
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def answer(port: int, query: str) -> list[Any]:
    """The series that answer a query; none while Prometheus starts."""
    address = f"http://{HOST}:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(address, timeout=5) as page:
            return list(json.load(page)["data"]["result"])
    except OSError:
        return []


@pytest.fixture
def ports() -> list[int]:
    """Ports of a worker, a conflater and Prometheus."""
    return quiet_ports(3)


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str, ports: list[int]) -> Iterator[World]:
    """A worker and a conflater, which serve their metrics."""
    running = World(bootstrap, tmp_path, unique, runtime={"metrics_port": ports[0]})
    try:
        running.start()
        running.start("conflate", running.conflated)
        yield running
    finally:
        running.close()


def test_every_query_of_the_dashboards_has_an_answer(world: World, ports: list[int], tmp_path: Path) -> None:
    """Each panel of workers and conflation shows something while records, one of them bad, flow."""
    queries = [
        target["expr"].replace("$topic", ".*").replace("$__rate_interval", "20s")
        for name in ("worker", "conflation")
        for panel in panels(name)
        for target in panel["targets"]
        if not any(part in target["expr"] for part in NEEDS_TROUBLE)
    ]
    assert len(queries) > 25
    with prometheus(tmp_path / "prometheus", ports[2], ports[:2]):
        seed = 0
        unanswered = list(queries)

        def has_answers() -> bool:
            nonlocal seed
            seed += 1
            world.publish([*random_commands(seed, 50, 10), (b'"bad"', b"{", {})])
            unanswered[:] = [query for query in unanswered if not answer(ports[2], query)]
            return not unanswered

        try:
            world.wait(has_answers, "an answer to each query")
        except AssertionError as error:
            raise AssertionError(f"no answer to {unanswered}") from error


def test_metrics_pass_prometheus_own_check(world: World, ports: list[int]) -> None:
    """`promtool check metrics` has nothing to say about names, units and texts of what both processes serve."""
    world.publish(random_commands(1, 50, 10))
    world.settle()
    for port in ports[:2]:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as page:
            done = subprocess.run(
                ["promtool", "check", "metrics"], input=page.read(), capture_output=True, timeout=150, check=False
            )
        complaints = (done.stdout + done.stderr).decode().splitlines()
        assert [line for line in complaints if not line.startswith(GOES)] == []
