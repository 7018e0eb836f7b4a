from __future__ import annotations

import json
from collections import defaultdict

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.merge import apply_delta
from spark_integration import read_sow
from spark_integration.tables.upsert import read_snapshot
from spark_integration.tables.versions import read_versions
from tests.endtoend.world import random_commands

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


def folded(world):
    """The versions of each key, folded from the delta topic: text, version, beginning and end in milliseconds."""
    versions, state = [], {}
    for record in world.read("delta"):
        key, kind = record.key.decode(), record.headers.get("kind", "update")
        before = state.pop(key, None)
        if before is not None:
            versions.append((key, *before, record.timestamp_ms))
        if kind in ("delete", "expire"):
            continue
        base = None if kind == "insert" or before is None else json.loads(before[0])
        removed = json.loads(record.headers.get("removed", "[]"))
        record_now = apply_delta(base, json.loads(record.value), removed)
        state[key] = (json.dumps(record_now, sort_keys=True), int(record.headers["version"]), record.timestamp_ms)
    return sorted([*versions, *((key, *last, None) for key, last in state.items())], key=str)


def versions_of(rows):
    """The same of a table of versions."""
    return sorted(
        (
            (row["sow_key"], json.dumps(json.loads(row["value"]), sort_keys=True), row["version"],
             _ms(row["valid_from"]), _ms(row["valid_to"]))
            for row in rows.collect()
        ),
        key=str,
    )  # fmt: skip


def _ms(moment):
    return None if moment is None else round(moment.timestamp() * 1000)


def _forget_last_commit(pipeline, job):
    commits = pipeline.home / "checkpoints" / job / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()


def test_tables_equal_the_topics_over_restarts_and_repeats(pipeline, spark, random_seed) -> None:
    """The table of records equals the SOW topic, and that of versions a fold of the delta topic, after each run.

    Runs end and begin again, and batches are repeated that were written and not committed.
    """
    world = pipeline.world
    small = {"maxOffsetsPerTrigger": 150}
    pipeline.write(
        book={"job": "table", "topic": world.name, "to": {"path": "book"}, "options": small},
        history={"job": "table", "topic": world.name, "kind": "scd2", "to": {"path": "history"}, "options": small},
    )
    commands = random_commands(random_seed, 500, 40)
    world.start()
    written = defaultdict(int)
    for part in (commands[:200], commands[200:400], commands[400:]):
        world.publish(part)
        world.settle()
        monitor = pipeline.run()
        for job in ("book", "history"):
            written[job] += monitor.views()[job].counts["written"]
            _forget_last_commit(pipeline, job)
    pipeline.run()
    wanted = read_sow(spark, world.name, options={"kafka.bootstrap.servers": world.bootstrap})
    columns = ["sow_key", "value", "version"]
    found = read_snapshot(spark, str(pipeline.home / "book"))
    if "_sow" in wanted.columns:
        columns = ["value", "_sow.sow_key", "_sow.version"]
    assert sorted(map(tuple, found.select(*columns).collect())) == sorted(map(tuple, wanted.select(*columns).collect()))
    history = read_versions(spark, str(pipeline.home / "history"))
    assert versions_of(history) == folded(world)
    assert written["history"] == len(world.read("delta"))


def test_columns_of_a_record_stand_beside_those_of_the_version(pipeline, spark) -> None:
    """With a schema a version has typed columns; a field named `version` needs a prefix for the table's own."""
    world = pipeline.world
    pipeline.write(
        history={"job": "table", "topic": world.name, "kind": "scd2", "to": {"path": "history"},
                 "schema": "id LONG, version STRING", "prefix": "sow_"}
    )  # fmt: skip
    world.publish([(b"1", {"id": 1, "version": "a"}, {"kind": "insert", "version": "1"})], "delta")
    pipeline.run()
    world.publish([(b"1", {"id": 1, "version": None}, {"version": "2"})], "delta")
    pipeline.run()
    rows = read_versions(spark, str(pipeline.home / "history")).orderBy("sow_version").collect()
    assert [(row["id"], row["version"], row["sow_version"], row["sow_valid_to"] is None) for row in rows] == [
        (1, "a", 1, False),
        (1, None, 2, True),
    ]
    assert rows[0]["sow_valid_to"] == rows[1]["sow_valid_from"]
