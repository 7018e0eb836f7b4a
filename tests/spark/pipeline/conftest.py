"""A pipeline on a real broker: its files, its topics, and its jobs run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from spark_integration.pipeline.monitor import Monitor
from spark_integration.pipeline.pipeline_settings import PipelineSettings
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession


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
        rows = [json.loads(line) for file in (self.home / directory).rglob("*.json")
                for line in file.read_text().splitlines()]  # fmt: skip
        return sorted(rows, key=lambda row: (row["file"], row["line"]))


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
