"""The jobs that write a lake: the archive's rows and files, and tables that readers of other makers see."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.errors import AnalysisException

from processor.errors import ConfigurationError
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from spark_integration.pipeline.jobs.archive import archive_writer
from spark_integration.tables.version_columns import VersionColumns
from spark_integration.tables.versions import version_table
from tests.endtoend.world import random_commands
from tests.spark.pipeline.lake_job import rows
from tests.spark.pipeline.test_killed import SPARK, Run
from tests.spark.pipeline.test_table import folded, versions_of
from tests.spark.upserting_job import SESSIONS


def _places(spark, pipeline):
    rows = spark.read.parquet(str(pipeline.home / "archive"))
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows.collect())


def _written(pipeline):
    world = pipeline.world
    return sorted((f"{world.name}.{role}", record.partition, record.offset)
                  for role in ("publish", "delta") for record in world.read(role))  # fmt: skip


def _fill(world, begin, end):
    world.publish([(b"%d" % (n % 7), {"id": n % 7, "n": n}, {"x": str(n)}) for n in range(begin, end)])
    world.publish([(b"%d" % (n % 7), {"id": n % 7, "n": n}, {"version": "1"}) for n in range(begin, end)], "delta")


@pytest.mark.parametrize("condition", ["DELTA_TABLE_NOT_FOUND", "INSUFFICIENT_PERMISSIONS"])
def test_a_table_that_cannot_be_read_is_not_begun_again(condition) -> None:
    """An archive and a table of versions without rows begin with the first record; unreadable ones are an error."""

    def load(place: str):
        raise AnalysisException(f"no {place} for you", errorClass=condition)

    reader = SimpleNamespace(load=load)
    conf = SimpleNamespace(get=lambda name, default: "io.delta.sql.DeltaSparkSessionExtension")
    session = SimpleNamespace(read=SimpleNamespace(format=lambda name: reader), table=load, conf=conf)
    reads = [
        lambda: archive_writer(session, "/lake/archive", "delta", "c").reached(["orders.delta"]),
        lambda: archive_writer(session, "lake.archive", "delta", "c").reached(["orders.delta"]),
        lambda: version_table(session, "/lake/history", "delta", VersionColumns(None, "")).state_rows(),
    ]
    for read in reads:
        if condition.endswith("NOT_FOUND"):
            assert not read()
        else:
            with pytest.raises(AnalysisException, match="for you"):
                read()


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_offset_is_archived_once(pipeline, spark) -> None:
    """The archive has each record of both topics once: after a restart, a repeated batch, and a lost checkpoint."""
    world = pipeline.world
    to = {"format": "parquet", "path": "archive"}
    pipeline.write(keep={"job": "archive", "topics": [world.name], "to": to, "options": {"maxOffsetsPerTrigger": 40}})
    _fill(world, 0, 50)
    assert pipeline.run().views()["keep"].counts["written"] == 100
    assert _places(spark, pipeline) == _written(pipeline)

    pipeline.forget_last_commit("keep")
    _fill(world, 50, 60)
    pipeline.run()
    assert _places(spark, pipeline) == _written(pipeline)

    saved = pipeline.home / "saved"
    shutil.copytree(pipeline.home / "checkpoints", saved)
    _fill(world, 60, 70)
    pipeline.run()
    shutil.rmtree(pipeline.home / "checkpoints")
    _fill(world, 70, 80)
    assert pipeline.run().views()["keep"].counts["written"] == 20
    assert _places(spark, pipeline) == _written(pipeline)

    shutil.rmtree(pipeline.home / "checkpoints")
    saved.rename(pipeline.home / "checkpoints")
    with pytest.raises(ConfigurationError, match="it is an older copy"):
        pipeline.run()


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_topic_that_was_created_again_is_refused(pipeline) -> None:
    """The offsets of the former one say nothing of it, with its checkpoint or a new one beside the archive."""
    world, job = pipeline.world, {"job": "archive", "topics": [pipeline.world.name], "roles": ["delta"]}
    pipeline.write(keep=job | {"to": {"path": "archive"}})
    _fill(world, 0, 5)
    pipeline.run()
    admin, name = Admin(world.config.kafka), f"{world.name}.delta"
    admin.delete([name])
    world.wait(lambda: name not in admin.cluster().topics, "the deletion")
    Admin(world.config.kafka).create([spec for spec in specs(world.config) if spec.name == name])
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"{name}' was deleted and created again"):
            pipeline.run()
        shutil.rmtree(pipeline.home / "checkpoints")


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_batch_of_a_dead_writer_is_not_taken_for_whole(pipeline, spark) -> None:
    """A writer dies between the renames of two topics' directories, and its checkpoint is lost: nothing is missing."""
    world = pipeline.world
    pipeline.write(keep={"job": "archive", "topics": [world.name], "to": {"format": "parquet", "path": "archive"}})
    _fill(world, 0, 20)
    pipeline.run()
    _fill(world, 20, 40)
    pipeline.run()
    archive = pipeline.home / "archive"
    (number,) = (archive / "_sowstream").glob("*.json")
    batches = sorted(archive.glob(f"topic={world.name}.*/date=*/batch=*-{1:010d}"))
    assert len(batches) >= 2
    # The batch is there in part: its number is not yet written, and the lowest offsets of one partition are gone.
    number.write_text('{"batch": 0}')
    shutil.rmtree(batches[0])
    file = min(batches[1].glob("*.parquet"))
    rows = spark.read.parquet(str(file)).orderBy("offset").collect()
    spark.createDataFrame(rows[len(rows) // 2 :], spark.read.parquet(str(file)).schema).coalesce(1).write.mode(
        "overwrite"
    ).parquet(str(pipeline.home / "half"))
    file.unlink()
    shutil.copy(next((pipeline.home / "half").glob("*.parquet")), batches[1])
    shutil.rmtree(pipeline.home / "checkpoints")
    assert _places(spark, pipeline) != _written(pipeline)

    pipeline.run()
    assert _places(spark, pipeline) == _written(pipeline)
    aside = archive / "_sowstream/incomplete" / batches[1].relative_to(archive)
    assert list(aside.glob("*.parquet"))


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_archive_is_a_history(pipeline, spark) -> None:
    """`merge_batch` makes the same records of the archive as of the topic itself, and the date is in the path."""
    from spark_integration import merge_batch

    world = pipeline.world
    pipeline.write(keep={"job": "archive", "topics": [world.name], "to": {"path": "archive"}})
    _fill(world, 0, 50)
    pipeline.run()
    rows = spark.read.parquet(str(pipeline.home / "archive"))
    assert {"key", "value", "headers", "topic", "partition", "offset", "timestamp", "date"} <= {*rows.columns}
    history = rows.where(rows["topic"] == f"{world.name}.publish")
    options = {"kafka.bootstrap.servers": world.bootstrap}
    with merge_batch(spark, world.name, config=world.config, history=history, partitions=2) as archived:
        found = {(bytes(row["key"]), bytes(row["value"])) for row in archived.records.select("key", "value").collect()}
    with merge_batch(spark, world.name, config=world.config, options=options, partitions=2) as read:
        wanted = {(bytes(row["key"]), bytes(row["value"])) for row in read.records.select("key", "value").collect()}
    assert found == wanted
    assert len(found) == 7


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)  # The first start fetches the package.
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_archives_and_versions_in_tables(table_format, tmp_path) -> None:
    """In each format each offset is archived once, and each version has one row, also if deltas come again."""
    job = [sys.executable, "-m", "tests.spark.pipeline.lake_job", table_format, str(tmp_path)]
    run = subprocess.run(job, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    places, versions, reached, last = map(json.loads, run.stdout.splitlines()[-4:])
    # An older copy of the checkpoint is refused by it; Iceberg compares offsets, and loses nothing.
    assert last == {"parquet": [2], "delta": [2, 2], "iceberg": [None]}[table_format]
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


def _rows_of(table_format, home, name):
    """The rows of a table, by the reader of its format in Python, which shares no code with Spark."""
    if table_format == "delta":
        return pytest.importorskip("deltalake").DeltaTable(str(home / name)).to_pyarrow_table().to_pylist()
    table = pytest.importorskip("pyiceberg.table").StaticTable.from_metadata(str(home / "lake" / "db" / name))
    return table.scan().to_arrow().to_pylist()


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(1800)  # The first start fetches the package.
@pytest.mark.parametrize(("table_format", "reader"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_readers_of_other_makers_see_the_tables_of_a_lake(table_format, reader, pipeline, random_seed) -> None:
    """delta-rs and PyIceberg read the records, versions and archived records that the topics have.

    Each run is a process of its own, and repeats the last micro-batch of the one before. `pip install deltalake
    pyiceberg` brings the readers, which are not among the project's packages.
    """
    pytest.importorskip(reader, reason=f"{reader} is not installed: pip install {reader}")
    world, home = pipeline.world, pipeline.home
    kind, place = ("path", "{}") if table_format == "delta" else ("table", "lake.db.{}")
    jobs = {
        "book": {"job": "table", "topic": world.name},
        "history": {"job": "table", "topic": world.name, "kind": "scd2"},
        "archive": {"job": "archive", "topics": [world.name]},
    }
    for name, job in jobs.items():
        job |= {"to": {"format": table_format, kind: place.format(name)}, "options": {"maxOffsetsPerTrigger": 150}}
    own = {"spark.sql.catalog.lake.warehouse": str(home / "lake"), "spark.databricks.delta.snapshotPartitions": "2"}
    tree = {"settings": "sowstream.yaml", "spark": SPARK | SESSIONS[table_format] | own, "jobs": jobs}
    pipeline.file.write_text(yaml.safe_dump(tree))
    commands = random_commands(random_seed, 500, 40)
    world.start()
    for part in (commands[:250], commands[250:]):
        world.publish(part)
        world.settle()
        Run(pipeline, "--once").end()
        for job in jobs:
            pipeline.forget_last_commit(job)
    Run(pipeline, "--once").end()

    present = {}
    for record in world.read("sow"):
        present.pop(record.key.decode(), None)
        if record.value is not None:
            present[record.key.decode()] = (json.loads(record.value), int(record.headers["version"]))
    book = _rows_of(table_format, home, "book")
    assert len(book) == len(present)
    assert {row["_sow"]["sow_key"]: (json.loads(row["value"]), row["_sow"]["version"]) for row in book} == present
    assert versions_of(_rows_of(table_format, home, "history")) == folded(world)
    found = [tuple(row[name] for name in ("topic", "partition", "offset", "key", "value"))
             for row in _rows_of(table_format, home, "archive")]  # fmt: skip
    assert sorted(found, key=str) == sorted(
        ((f"{world.name}.{role}", record.partition, record.offset, record.key, record.value)
         for role in ("publish", "delta") for record in world.read(role)), key=str,
    )  # fmt: skip
