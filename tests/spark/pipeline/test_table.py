from __future__ import annotations

import json
import shutil
from collections import defaultdict

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import ConfigurationError, Stop
from processor.merge import apply_delta
from spark_integration import read_sow
from spark_integration.tables.upsert import read_snapshot
from spark_integration.tables.versions import read_versions
from tests.endtoend.world import random_commands

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]


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
    """The same of the rows of a table of versions."""
    return sorted(
        (
            (row["sow_key"], json.dumps(json.loads(row["value"]), sort_keys=True), row["version"],
             _ms(row["valid_from"]), _ms(row["valid_to"]))
            for row in rows
        ),
        key=str,
    )  # fmt: skip


def _ms(moment):
    return None if moment is None else round(moment.timestamp() * 1000)


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
            pipeline.forget_last_commit(job)
    pipeline.run()
    wanted = read_sow(spark, world.name, options={"kafka.bootstrap.servers": world.bootstrap})
    columns = ["sow_key", "value", "version"]
    found = read_snapshot(spark, str(pipeline.home / "book"))
    if "_sow" in wanted.columns:
        columns = ["value", "_sow.sow_key", "_sow.version"]
    assert sorted(map(tuple, found.select(*columns).collect())) == sorted(map(tuple, wanted.select(*columns).collect()))
    history = read_versions(spark, str(pipeline.home / "history"))
    assert versions_of(history.collect()) == folded(world)
    assert written["history"] == len(world.read("delta"))


def test_a_table_of_another_topic_is_refused(pipeline) -> None:
    """Another topic has other offsets, of which the first ones would count as old: the job names the two and stops."""
    world = pipeline.world
    kinds = {"book": {"to": {"path": "book"}}, "history": {"kind": "scd2", "to": {"path": "history"}}}
    pipeline.write(**{name: {"job": "table", "topic": world.name, **kind} for name, kind in kinds.items()})
    world.publish([(b"1", {"id": n}, {"version": str(n)}) for n in range(1, 4)], "sow")
    world.publish([(b"1", {"id": 1}, {"kind": "insert", "version": "1"})], "delta")
    for _ in range(2):
        pipeline.run()
        shutil.rmtree(pipeline.home / "checkpoints")
    pipeline.write(**{name: {"job": "table", "topic": world.conflated, **kind} for name, kind in kinds.items()})
    for job, role in (("book", "sow"), ("history", "delta")):
        said = rf"has the offsets of the topic {world.name}\.{role} .*, and this one is {world.conflated}\.{role} "
        with pytest.raises(ConfigurationError, match=said):
            pipeline.run(job)


@pytest.mark.parametrize("kind", ["scd1", "scd2"])
def test_a_table_of_other_columns_is_refused(kind, pipeline) -> None:
    """Rows that do not change would lack a new field, or keep one that is gone: the job names them and stops."""
    job = {"job": "table", "topic": pipeline.world.name, "kind": kind, "to": {"path": "book"}}
    headers = {"kind": "insert", "version": "1"}
    pipeline.world.publish([(b"1", {"id": 1, "a": [{"b": 2}], "c": 3}, headers)], "sow" if kind == "scd1" else "delta")
    for _ in range(2):
        pipeline.write(book=job | {"schema": "id LONG, a ARRAY<STRUCT<b: LONG>>, c LONG"})
        pipeline.run()
    pipeline.write(book=job | {"schema": "ID LONG, a ARRAY<STRUCT<b: LONG, d: LONG>>"})
    with pytest.raises(ConfigurationError, match=r"not those of `schema`: a\.d is new, c is gone"):
        pipeline.run()


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


def test_a_record_that_does_not_fit_is_set_aside_and_a_mended_one_heals_the_table(pipeline, spark) -> None:
    """It is in the quarantine with its place, key, field and reason; the records around it are in both tables.

    With `on_misfit: fail` the job stops, and the error names the settings that help.
    """
    world = pipeline.world
    schema = "id LONG, fare DECIMAL(10,2)"
    jobs = {
        "book": {"job": "table", "topic": world.name, "to": {"path": "book"}, "schema": schema},
        "history": {"job": "table", "topic": world.name, "kind": "scd2", "to": {"path": "history"}, "schema": schema},
    }
    pipeline.write(**jobs, strict={**jobs["book"], "to": {"path": "strict"}, "on_misfit": "fail"})
    bad = {"sow": b'{"id": 1, "fare": 1e400}', "delta": b'{"id": 1, "fare": "dear"}'}
    for role, text in bad.items():
        world.publish(
            [(b"1", {"id": 1, "fare": 1}, {"kind": "insert", "version": "1"}),
             (b"1", text, {"version": "2"}),
             (b"2", {"id": 2, "fare": 2}, {"kind": "insert", "version": "1"})], role,
        )  # fmt: skip
    monitor = pipeline.run("book", "history")
    assert {job: view.counts["quarantined.misfit"] for job, view in monitor.views().items()} == {
        "book": 1,
        "history": 1,
    }
    for job, role in (("book", "sow"), ("history", "delta")):
        [row] = pipeline.set_aside(f"checkpoints/{job}/quarantine")
        [record] = [record for record in world.read(role) if record.value == bad[role]]
        assert {name: row[name] for name in ("reason", "field", "topic", "partition", "offset", "key")} == {
            "reason": "misfit", "field": "/fare", "topic": f"{world.name}.{role}", "partition": record.partition,
            "offset": record.offset, "key": "1",
        }  # fmt: skip
        assert "/fare is not decimal(10,2)" in row["detail"]
        assert json.loads(row["row"]) == json.loads(bad[role])
    book = read_snapshot(spark, str(pipeline.home / "book")).orderBy("id")
    assert [(row["id"], row["fare"], row["_sow"]["version"]) for row in book.collect()] == [(1, 1, 1), (2, 2, 1)]
    assert "misfit" not in book.schema["_sow"].dataType.names
    place = rf"{world.name}.sow, partition \d, offset \d, key 1: does not fit the schema: /fare"
    with pytest.raises(Stop, match=rf"strict: records that do not fit `schema`.*{place}"):
        pipeline.run("strict")
    for role in ("sow", "delta"):
        world.publish([(b"1", {"id": 1, "fare": 3}, {"version": "3"})], role)
    pipeline.run("book", "history")
    book = read_snapshot(spark, str(pipeline.home / "book")).orderBy("id")
    assert [(row["id"], row["fare"]) for row in book.collect()] == [(1, 3), (2, 2)]
    rows = read_versions(spark, str(pipeline.home / "history")).orderBy("sow_key", "version").collect()
    assert [(row["sow_key"], row["version"], row["id"], row["fare"], row["valid_to"] is None) for row in rows] == [
        ("1", 1, 1, 1, False), ("1", 2, None, None, False), ("1", 3, 1, 3, True), ("2", 1, 2, 2, True),
    ]  # fmt: skip
