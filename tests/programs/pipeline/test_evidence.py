"""The readers of the evidence read files in the form in which Spark writes them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.endtoend.oracle import Seen
from tests.programs.pipeline.evidence import (
    Archived,
    Quarantined,
    TableRow,
    VersionRow,
    archived,
    quarantined,
    table_rows,
    version_rows,
)

_AT = datetime(2026, 11, 23, 12, 0, 0, 7000)  # noqa: DTZ001 - Spark writes times without a zone.
_AT_MS = 1_795_435_200_007


def _parquet(file: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), file, use_deprecated_int96_timestamps=True)


def _snapshot(path: Path, number: int, directory: str, *closed: str) -> None:
    (path / "_snapshots").mkdir(parents=True, exist_ok=True)
    content = {"directory": directory, "applied": {"0": 5}, "closed": [*closed]}
    (path / "_snapshots" / f"{number}.json").write_text(json.dumps(content))


def test_an_archive_is_read_with_its_topics_headers_and_dates(tmp_path: Path) -> None:
    """Each record has its topic and date from the directories; null values, keys and headers are kept apart."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {"key": pa.binary(), "value": pa.binary(), "headers": headers, "partition": pa.int32()}
    schema = pa.schema({**columns, "offset": pa.int64(), "timestamp": pa.timestamp("ns"), "timestampType": pa.int32()})
    place = {"partition": 3, "timestamp": _AT, "timestampType": 0}
    rows = [
        {"key": b"1", "value": b"{}", "headers": [{"key": "client", "value": b"desk"}], "offset": 7, **place},
        {"key": b"1", "value": None, "headers": None, "offset": 8, **place},
    ]
    _parquet(tmp_path / "topic=orders.publish/date=2026-11-23/batch=ab-0000000001/part-0.parquet", rows, schema)
    _parquet(tmp_path / ".spark-staging-1/topic=orders.publish/date=2026-11-23/batch=x/part-0.parquet", rows, schema)
    (tmp_path / "_sowstream").mkdir()
    (tmp_path / "_sowstream" / "ab.json").write_text("{}")
    first = Seen(3, 7, b"1", b"{}", {"client": "desk"}, _AT_MS)
    assert [*archived(tmp_path)] == [
        Archived("orders.publish", first, "2026-11-23"),
        Archived("orders.publish", Seen(3, 8, b"1", None, {}, _AT_MS), "2026-11-23"),
    ]
    assert [*archived(tmp_path / "none")] == []


@pytest.mark.parametrize("is_struct", [False, True])
def test_a_table_is_read_from_its_latest_snapshot(tmp_path: Path, is_struct: bool) -> None:
    """Only the directory of the snapshot with the highest number is read, with metadata in columns or in `_sow`."""
    metadata = {"sow_key": "1", "version": 4}
    row = {"value": '{"id": 1}', **({"_sow": metadata} if is_struct else metadata)}
    _parquet(tmp_path / "data/10-a/part-0.parquet", [row])
    _parquet(tmp_path / "data/9-b/part-0.parquet", [row, row])
    _snapshot(tmp_path, 9, "9-b")
    _snapshot(tmp_path, 10, "10-a")
    assert [*table_rows(tmp_path)] == [TableRow("1", 4, {"id": 1})]
    assert [*table_rows(tmp_path / "none")] == []


def test_a_table_of_versions_is_read_with_its_ended_versions(tmp_path: Path) -> None:
    """The ended versions of the directories that the snapshot names belong to it, and no others.

    Ended ones in the snapshot itself are there for the writer.
    """
    ended = {"value": '{"id": 1}', "sow_key": "1", "version": 1, "valid_from": _AT, "valid_to": _AT}
    present = {**ended, "version": 2, "valid_to": None}
    schema = pa.schema({"value": pa.string(), "sow_key": pa.string(), "version": pa.int64(),
                        "valid_from": pa.timestamp("ns"), "valid_to": pa.timestamp("ns")})  # fmt: skip
    for directory, *rows in (("2-a", present, ended), ("c0-a", ended), ("c0-b", ended)):
        _parquet(tmp_path / "data" / directory / "part-0.parquet", rows, schema)
    _snapshot(tmp_path, 2, "2-a", "c0-a")
    assert [*version_rows(tmp_path)] == [
        VersionRow("1", 2, _AT_MS, None, {"id": 1}),
        VersionRow("1", 1, _AT_MS, _AT_MS, {"id": 1}),
    ]


def test_a_quarantine_is_read_without_unfinished_files(tmp_path: Path) -> None:
    """Rows of files have the name of the file, rows of Kafka `topic/partition`; files in the making do not count."""
    rows = [
        {"file": "file:///data/incoming/rows-000001.json", "line": 3, "reason": "undecodable", "row": "{"},
        {"file": "raw/0", "line": 0, "reason": "undecodable"},
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    for directory in ("job=files/batch=ab-0", "job=files/batch=ab-1/_temporary/0"):
        place = tmp_path / directory
        place.mkdir(parents=True)
        (place / "part-0.json").write_text(text)
    assert [*quarantined(tmp_path)] == [
        Quarantined("rows-000001.json", 3, "undecodable", "{"),
        Quarantined("raw/0", 0, "undecodable", None),
    ]
