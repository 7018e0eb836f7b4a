"""The pipeline on Spark next to the demo: `sowstream-spark` keeps the orders as a table of Parquet, which is read here.

The table is read by its documented layout, without Spark: the newest file of `_snapshots` names the directory of the
rows, and the next offset of each partition.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from processor.errors import Stop
from processor.tools.broker.guarded import GuardedProcess
from processor.tools.demo.check import CheckResult, TopicState, same_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from processor.tools.demo.settings import DemoSetup

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

    def reached(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Return whether the table has all records below these offsets, by Kafka topic and partition."""
        snapshot = self._snapshot()
        applied: dict[str, int] = {} if snapshot is None else snapshot["applied"]
        return all(applied.get(str(partition), 0) >= end for (_, partition), end in ends.items())

    def check(self, sow: TopicState) -> CheckResult:
        """Compare the table with the state of the SOW topic."""
        table = TopicState()
        for row in self._rows():
            table.put(row["sow_key"], json.loads(row["value"]), row["version"])
        return same_state(f"the table on Spark equals {TOPIC}.sow", sow, table)

    def _look(self) -> TableFigures | None:
        try:
            progress = json.loads(self._progress.read_text(encoding="utf-8"))
            states = [json.loads(row["value"]).get("state") for row in self._rows()]
        except OSError:  # Not there yet, or replaced between two looks.
            return None
        counts = Counter(states)
        by_state = {state: counts[state] for state in _STATES}
        return TableFigures(progress["batch"], progress["took_s"], len(states), by_state)

    def _snapshot(self) -> dict[str, Any] | None:
        names = self._path / "_snapshots"
        numbers = [int(file.stem) for file in names.glob("*.json") if file.stem.isdigit()] if names.is_dir() else []
        if not numbers:
            return None
        content: dict[str, Any] = json.loads((names / f"{max(numbers)}.json").read_text(encoding="utf-8"))
        return content

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the latest snapshot: `value`, `sow_key` and `version`."""
        import pyarrow.dataset as ds  # noqa: PLC0415 - only for this part of the demo

        snapshot = self._snapshot()
        if snapshot is None:
            return
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
