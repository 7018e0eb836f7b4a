"""Counts the results and the tasks, in the driver's pod: `python3 - < counted.py` prints JSON.

It needs pyarrow, and nothing of this project.
"""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

SHARED = Path("/shared")
UI = "http://localhost:4040/api/v1/applications"


def archived() -> dict[str, Any]:
    """The number of rows and of different offsets of each archived topic."""
    import pyarrow.dataset as ds

    archive = SHARED / "archive"
    if not archive.exists():
        return {}
    table = ds.dataset(archive, partitioning="hive").to_table(columns=["topic", "partition", "offset"])
    rows = list(zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))
    counts, offsets = Counter(row[0] for row in rows), Counter(row[0] for row in set(rows))
    return {topic: {"rows": counts[topic], "offsets": offsets[topic]} for topic in sorted(counts)}


def book() -> dict[str, Any]:
    """The number of records in the latest state of the table, and the sum of their `open`."""
    import pyarrow.parquet as pq

    names = sorted((SHARED / "book" / "_snapshots").glob("[0-9]*.json"), key=lambda file: int(file.stem))
    if not names:
        return {"records": 0, "open": 0}
    snapshot = json.loads(names[-1].read_text())
    values = pq.read_table(SHARED / "book" / "data" / snapshot["directory"], columns=["value"])["value"].to_pylist()
    return {"records": len(values), "open": sum(json.loads(value)["open"] for value in values)}


def executors() -> dict[str, Any]:
    """Each executor of the driver's application, with its host and its tasks, by its number."""
    with urllib.request.urlopen(UI, timeout=10) as answer:
        application = json.load(answer)[0]["id"]
    with urllib.request.urlopen(f"{UI}/{application}/allexecutors", timeout=10) as answer:
        rows = json.load(answer)
    return {
        row["id"]: {"host": row["hostPort"].split(":")[0], "tasks": row["completedTasks"], "failed": row["failedTasks"],
                    "active": row["isActive"]}
        for row in rows
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps({"archive": archived(), "book": book(), "executors": executors()}))
