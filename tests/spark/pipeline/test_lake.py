from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from tests.spark.pipeline.lake_job import rows


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)  # The first start fetches the package.
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_archives_and_versions_in_tables(table_format, tmp_path) -> None:
    """In each format each offset is archived once, and each version has one row, also if deltas come again."""
    job = [sys.executable, "-m", "tests.spark.pipeline.lake_job", table_format, str(tmp_path)]
    run = subprocess.run(job, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    places, versions, reached = map(json.loads, run.stdout.splitlines()[-3:])
    records = rows(0, 24)
    assert places == sorted([record[4], record[5]] for record in records)
    assert reached == [["orders.delta", 0, 23], ["orders.delta", 1, 22]]
    wanted, opened = [], {}
    for key, value, headers, _, _, _, at, _ in records:
        named, at_ms = dict(headers), round(at.timestamp() * 1000)
        if key in opened:
            wanted.append([*opened.pop(key), at_ms])
        if named.get("kind") != b"delete":
            opened[key] = [
                key.decode(),
                int(named["version"]),
                json.dumps(json.loads(value), separators=(",", ":")),
                at_ms,
            ]
    wanted += [[*row, None] for row in opened.values()]
    assert versions == sorted(wanted, key=str)
