"""The demo reads the table that a job on Spark keeps, and compares it with the SOW topic."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from processor.trial.demo.processes import SparkTable
from processor.trial.demo.settings import write_settings

pytestmark = pytest.mark.skipif(
    find_spec("pyspark") is None or find_spec("pyarrow") is None,
    reason="PySpark or PyArrow is not installed: pip install 'sowstream[spark]'",
)

_ORDERS = {"1": (3, {"id": 1, "state": "new"}), "2": (1, {"id": 2, "state": "filled"})}


def _write(directory: Path, number: int, rows: dict[str, tuple[int, Any]], *, is_struct: bool) -> None:
    """Write a snapshot of the table, with the metadata in columns or in the struct `_sow`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [{"value": json.dumps(record), "sow_key": key, "version": version}
               for key, (version, record) in rows.items()]  # fmt: skip
    if is_struct:
        columns = [{"value": row.pop("value"), "_sow": row} for row in columns]
    data = directory / "book" / "data" / f"{number}-x"
    data.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(columns), data / "part-0.parquet")
    names = directory / "book" / "_snapshots"
    names.mkdir(exist_ok=True)
    (names / f"{number}.json").write_text(json.dumps({"directory": data.name}))
    progress = directory / "checkpoints" / "book"
    progress.mkdir(parents=True, exist_ok=True)
    content = {"batch": number, "took_s": 0.5}
    (progress / "sowstream-progress.json").write_text(json.dumps(content))


@pytest.fixture
def table(tmp_path: Path) -> SparkTable:
    """A table of which no snapshot is written yet."""
    return SparkTable(write_settings(tmp_path, "localhost:1", "", is_endless=False), tmp_path)


def test_a_table_before_its_first_snapshot_has_no_figures(table: SparkTable) -> None:
    """Without a snapshot there are no figures, and no rows."""
    assert table.figures() is None
    assert table.check({}).wrong == ()


@pytest.mark.parametrize("is_struct", [False, True])
def test_the_latest_snapshot_counts(table: SparkTable, tmp_path: Path, is_struct: bool) -> None:
    """Figures and rows are those of the snapshot with the highest number."""
    _write(tmp_path, 9, {"1": (1, {"id": 1})}, is_struct=is_struct)
    _write(tmp_path, 10, _ORDERS, is_struct=is_struct)
    figures = table.figures()
    assert figures is not None
    assert (figures.rows, figures.batch, figures.took_s) == (2, 10, 0.5)
    assert figures.by_state == {"new": 1, "held": 0, "filled": 1, "cancelled": 0}


def test_a_row_that_differs_from_the_topic_is_found(table: SparkTable, tmp_path: Path) -> None:
    """A table equal to the SOW topic has nothing wrong; an old version, a missing row and an extra one are reported."""
    _write(tmp_path, 1, _ORDERS, is_struct=False)
    assert table.check(_ORDERS).wrong == ()
    others = {"1": (4, {"id": 1, "state": "new"}), "3": (1, {"id": 3})}
    assert [text[:5] for text in table.check(others).wrong] == ["key 1", "key 2", "key 3"]
