"""The workers of the demo, and its pipeline on Spark: real processes, started and stopped together.

`sowstream-spark` keeps the orders as a table of Parquet.
The table is read by its documented layout, without Spark: the newest file of `_snapshots` names the directory of the
rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import yaml

from processor.errors import Stop
from processor.trial.broker.guarded import GuardedProcess
from processor.trial.broker.server import free_port
from processor.trial.demo.check import CheckResult, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.trial.demo.settings import DemoSetup


TOPIC: Final = "orders"
"""The topic of the demo that becomes a table."""
_JOB: Final = "book"
_STATES: Final = ("new", "held", "filled", "cancelled")
_LOOK_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 90.0


class TableFigures(NamedTuple):
    """The figures of the table."""

    batch: int
    """The number of the last micro-batch."""
    took_s: float
    """Its duration."""
    rows: int
    """The rows of the table."""
    by_state: Mapping[str, int]
    """The orders in each state."""


class SparkTable:
    """The job and its table."""

    def __init__(self, setup: DemoSetup, directory: Path) -> None:
        """Write `pipeline.yaml`; the job runs once its process is started.

        Raises:
            Stop: PySpark or PyArrow is not installed.
        """
        for package in ("pyspark", "pyarrow"):
            if find_spec(package) is None:
                raise Stop(f"the demo with Spark needs {package}: pip install 'sowstream[spark]'")
        self._path = directory / _JOB
        self._progress = directory / "checkpoints" / _JOB / "sowstream-progress.json"
        file = directory / "pipeline.yaml"
        file.write_text(yaml.safe_dump(_pipeline(setup)), encoding="utf-8")
        scratch = directory / "scratch"
        scratch.mkdir()
        self.process = GuardedProcess(
            "spark",
            [sys.executable, "-m", "spark_integration.cli", "run", "-c", str(file)],
            directory,
            stop_timeout_s=_STOP_TIMEOUT_S,
            env={
                "SPARK_LOCAL_DIRS": str(scratch),
                "SPARK_SUBMIT_OPTS": f"-XX:-UsePerfData -Djava.io.tmpdir={scratch}",
            },
        )
        self._figures: TableFigures | None = None
        self._looked_s = 0.0

    def figures(self) -> TableFigures | None:
        """The figures, at most a second old; None before the first micro-batch."""
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            self._figures = self._look() or self._figures
        return self._figures

    def check(self, sow: Mapping[str, tuple[int, Any]]) -> CheckResult:
        """Compare the table with the records of the SOW topic, by key, each with its version."""
        rows = {row["sow_key"]: (row["version"], json.loads(row["value"])) for row in self._rows()}
        return same(f"the table on Spark equals {TOPIC}.sow", sow, rows)

    def _look(self) -> TableFigures | None:
        try:
            progress = json.loads(self._progress.read_text(encoding="utf-8"))
            states = [json.loads(row["value"]).get("state") for row in self._rows()]
        except OSError:  # Not there yet, or replaced between two looks.
            return None
        counts = Counter(states)
        by_state = {state: counts[state] for state in _STATES}
        return TableFigures(progress["batch"], progress["took_s"], len(states), by_state)

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the latest snapshot: `value`, `sow_key` and `version`."""
        import pyarrow.dataset as ds  # noqa: PLC0415 - only for this part of the demo

        snapshots = self._path / "_snapshots"
        numbers = [int(file.stem) for file in snapshots.glob("*.json") if file.stem.isdigit()]
        if not numbers:
            return
        snapshot = json.loads((snapshots / f"{max(numbers)}.json").read_text(encoding="utf-8"))
        rows = ds.dataset(self._path / "data" / snapshot["directory"], format="parquet")
        for row in rows.to_table().to_pylist():
            yield {**row, **(row.get("_sow") or {})}


def _pipeline(setup: DemoSetup) -> dict[str, Any]:
    return {
        "settings": setup.file.name,
        "spark": {
            "spark.master": "local[1]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
        "jobs": {
            _JOB: {
                "job": "table",
                "topic": setup.family(TOPIC),
                "to": {"format": "parquet", "path": _JOB},
                "every": "2s",
            }
        },
    }


class Team:
    """All workers of the demo, and the job on Spark."""

    def __init__(
        self, setup: DemoSetup, directory: Path, table: SparkTable | None = None, *, is_web: bool = False
    ) -> None:
        def worker(name: str, command: Literal["worker", "conflate", "view", "gateway"], **env: str) -> GuardedProcess:
            return GuardedProcess(name, _command(command, setup), directory, env=env)

        self.mergers = [worker("worker 1", "worker"), worker("worker 2", "worker")]
        self.conflater = worker("conflate", "conflate")
        self.viewer = worker("view", "view")
        """The worker of the view."""
        self.page = f"127.0.0.1:{free_port()}" if is_web else None
        """The address of the gateway's page; None without a gateway."""
        self.gateway = None if self.page is None else worker("gateway", "gateway", SOWSTREAM_GATEWAY__LISTEN=self.page)
        """The gateway; None without it."""
        self.table = table
        """The job on Spark; None without it."""
        self._down: set[str] = set()

    @property
    def all(self) -> list[GuardedProcess]:
        """Every process."""
        others = [self.gateway, None if self.table is None else self.table.process]
        return [*self.mergers, self.conflater, self.viewer, *[process for process in others if process is not None]]

    def start(self) -> None:
        """Start all."""
        for process in self.all:
            process.start()

    def kill(self, process: GuardedProcess) -> None:
        """Kill one, on purpose."""
        self._down.add(process.name)
        process.kill()

    def revive(self, process: GuardedProcess) -> None:
        """Start a killed process again."""
        process.start()
        self._down.discard(process.name)

    def require_alive(self) -> None:
        """Check that all processes run, except those killed on purpose.

        Raises:
            Stop: a worker ended by itself; with the end of its log.
        """
        for process in self.all:
            if not process.is_running and process.name not in self._down:
                raise Stop(f"{process.name} ended with exit code {process.exit_code}")

    def stop(self) -> dict[str, int]:
        """End all processes in good order, at the same time; returns their exit codes, also of those ended before."""
        started = [process for process in self.all if process.is_started]
        for process in started:
            process.ask_to_stop()
        return {process.name: process.await_end() for process in started}

    def tails(self) -> str:
        """The end of every log."""
        return "\n".join(f"── {process.name}: {process.log.name}\n{process.tail()}" for process in self.all)


def _command(command: str, setup: DemoSetup) -> list[str]:
    options = ["-c", str(setup.file), "--bootstrap", setup.bootstrap, "--state-dir", str(setup.state_dir)]
    if command == "gateway":
        return [sys.executable, "-m", "processor.cli.main", command, *options]
    config = setup.config
    names = {"worker": [*config.topics], "conflate": [*config.conflated], "view": [*config.views]}[command]
    return [sys.executable, "-m", "processor.cli.main", command, *names, *options]
