"""A pipeline on a real broker: its files, its topics, and its jobs run in this process."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from spark_integration.pipeline.monitor import STATES, Monitor
from spark_integration.pipeline.pipeline_settings import PipelineSettings
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

PATIENCE_S = 300
"""Longest wait for a fact; a busy machine takes minutes for a micro-batch."""


class Running:
    """Jobs that run in a thread of this process."""

    def __init__(self) -> None:
        self.stop, self.registry = Event(), CollectorRegistry()
        self.monitor = Monitor(self.registry)
        self.error: BaseException | None = None
        """The error with which the run has ended; None while it runs, and after a good end."""

    def state(self, job: str) -> str:
        """The state of a job by its metric."""
        value = self.registry.get_sample_value
        states = [one for one in STATES if value("sowstream_spark_job_state", {"job": job, "state": one})]
        return states[0] if states else ""

    def wait(self, fact: Callable[[], bool]) -> None:
        """Wait for a fact, for as long as the jobs run."""
        deadline = time.monotonic() + PATIENCE_S
        while not fact():
            assert self.error is None, str(self.error)
            assert time.monotonic() < deadline, {job: self.state(job) for job in self.monitor.views()}
            time.sleep(0.05)  # Between two looks; the fact decides.


class Pipeline:
    """The files of a pipeline next to those of a world."""

    def __init__(self, world: World, spark: SparkSession | None) -> None:
        self.world = world
        self.home = world.directory
        self.file = self.home / "pipeline.yaml"
        self._spark = spark

    def write(self, **jobs: Mapping[str, Any]) -> PipelineSettings:
        """Write the jobs to the file, and load it."""
        self.file.write_text(yaml.safe_dump({"settings": "sowstream.yaml", "jobs": jobs}))
        return PipelineSettings.load(self.file)

    def run(self, *names: str) -> Monitor:
        """Run jobs of the file over the input that exists now."""
        from spark_integration.pipeline.runner import run_jobs

        assert self._spark is not None
        pipeline, monitor = PipelineSettings.load(self.file), Monitor()
        run_jobs(pipeline, pipeline.chosen([*names]), self._spark, once=True, stop=Event(), monitor=monitor)
        return monitor

    @contextmanager
    def running(self, *names: str) -> Iterator[Running]:
        """Run jobs of the file until the block ends, which it does with the running micro-batches."""
        from spark_integration.pipeline.runner import run_jobs

        assert self._spark is not None
        pipeline, session, running = PipelineSettings.load(self.file), self._spark, Running()

        def run() -> None:
            try:
                run_jobs(pipeline, pipeline.chosen([*names]), session, once=False, stop=running.stop,
                         monitor=running.monitor)  # fmt: skip
            except BaseException as error:  # noqa: BLE001 - shown to the test
                running.error = error

        thread = Thread(target=run, name="pipeline")
        thread.start()
        try:
            yield running
        finally:
            running.stop.set()
            thread.join()

    def forget_last_commit(self, job: str) -> None:
        """Let the last micro-batch of a job be repeated, as after a death between its write and its commit."""
        commits = self.home / "checkpoints" / job / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink()

    def drop(self, name: str, *lines: Any, directory: str = "incoming") -> Path:
        """Let a file of messages appear at once: texts as they are, else JSON."""
        (self.home / directory).mkdir(exist_ok=True)
        file = self.home / directory / name
        aside = self.home / f".{name}"
        aside.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        aside.rename(file)
        return file

    def rejected(self, directory: str = "quarantine") -> list[dict[str, Any]]:
        """The rows of the quarantine, in the order of their places."""
        return sorted(self.set_aside(directory), key=lambda row: (row["file"], row["line"]))

    def set_aside(self, directory: str) -> list[dict[str, Any]]:
        """The rows of a quarantine of any job."""
        return [json.loads(line) for file in (self.home / directory).rglob("*.json")
                for line in file.read_text().splitlines()]  # fmt: skip


@pytest.fixture
def pipeline(bootstrap: str, tmp_path: Path, unique: str, spark: SparkSession) -> Iterator[Pipeline]:
    """A pipeline whose topic is `unique`."""
    world = World(bootstrap, tmp_path, unique)
    yield Pipeline(world, spark)
    world.close()


@pytest.fixture
def pipeline_of(bootstrap: str, tmp_path: Path, unique: str, spark: SparkSession) -> Iterator[Callable[..., Pipeline]]:
    """Creates a pipeline with settings of its topic."""
    worlds: list[World] = []

    def create(**arguments: Any) -> Pipeline:
        worlds.append(World(bootstrap, tmp_path, unique, **arguments))
        return Pipeline(worlds[-1], spark)

    yield create
    for world in worlds:
        world.close()
