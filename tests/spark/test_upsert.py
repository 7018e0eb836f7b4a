from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from processor.errors import ConfigurationError, Stop

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from spark_integration import read_sow, stream_sow
from spark_integration.tables.snapshots import Snapshots
from spark_integration.tables.upsert import MergedPaths, create_sql, follow_topic, merge_sql, read_snapshot, upsert_to
from tests.spark.upserting_job import COLUMNS, batches

needs_spark = [
    pytest.mark.spark,
]


def with_spark(test):
    """Marks tests that need a session."""
    for mark in needs_spark:
        test = mark(test)
    return test


def put(key, qty, version, offset, partition=0):
    """A row of an insert or update."""
    return (int(key), qty, key, "insert" if version == 1 else "update", version, partition, offset)


def gone(key, version, offset, partition=0, kind="delete"):
    """A row of a delete: the fields of the record are null."""
    return (None, None, key, kind, version, partition, offset)


def table(spark, path):
    """The quantity and version of each key, as a reader sees them."""
    return {row["sow_key"]: (row["qty"], row["version"]) for row in read_snapshot(spark, path).collect()}


def in_struct(spark, rows):
    """Rows as from `stream_sow`: the metadata is in `_sow`."""
    meta = [F.col(name) for name in ("sow_key", "kind", "version", "partition", "offset")]
    return spark.createDataFrame(rows, COLUMNS).select("id", "qty", F.struct(*meta).alias("_sow"))


@with_spark
def test_a_batch_inserts_replaces_and_removes(spark, tmp_path) -> None:
    """The last row of each key by offset counts, as versions of former releases start again after a delete."""
    path = str(tmp_path / "t")
    upsert = upsert_to(path)
    upsert(
        spark.createDataFrame([put("1", 5, 1, 0), put("2", 6, 1, 1), put("1", 7, 2, 2), put("3", 1, 9, 3)], COLUMNS), 0
    )
    assert table(spark, path) == {"1": (7, 2), "2": (6, 1), "3": (1, 9)}
    batch = [gone("1", 3, 4), gone("2", 2, 5, kind="expire"), gone("3", 10, 6), put("3", 2, 1, 7), put("4", 4, 1, 8)]
    upsert(spark.createDataFrame(batch, COLUMNS), 1)
    assert table(spark, path) == {"3": (2, 1), "4": (4, 1)}
    assert "kind" not in read_snapshot(spark, path).columns


@with_spark
def test_rows_with_the_metadata_in_a_struct(spark, tmp_path) -> None:
    """With `_sow`, a field of the record may be called `kind`; another key, and the other layout, are checked."""
    path = str(tmp_path / "t")
    nested = in_struct(spark, [put("1", 5, 1, 0), put("2", 6, 1, 1), put("1", 7, 2, 2)]).withColumn("kind", F.lit("k"))
    upsert = upsert_to(path)
    upsert(nested, 0)
    upsert(in_struct(spark, [gone("2", 2, 3), put("3", 1, 1, 4)]).withColumn("kind", F.lit("k")), 1)
    found = read_snapshot(spark, path)
    assert sorted((row["qty"], row["kind"], row["_sow"]["sow_key"]) for row in found.collect()) == [
        (1, "k", "3"), (7, "k", "1")
    ]  # fmt: skip
    assert found.schema["_sow"].dataType.names == ["sow_key", "version", "partition", "offset"]
    with pytest.raises(ConfigurationError, match="written from a stream with metadata='struct'"):
        upsert(spark.createDataFrame([put("4", 5, 1, 9)], COLUMNS), 2)
    with pytest.raises(ConfigurationError, match=r"null in its key \['id'\]: kind delete, partition 0, offset 5"):
        upsert_to(path, key=["id"])(in_struct(spark, [gone("1", 3, 5)]), 2)


@with_spark
@pytest.mark.long
def test_batches_in_any_cut_and_repeated_leave_the_last_state(spark, tmp_path, random_seed) -> None:
    """Any division of a topic into batches, some of them repeated, leaves the last state."""
    rng = random.Random(random_seed)
    log, state, live = [], {}, {}
    for offset in range(60):
        key = str(rng.randrange(8))
        partition = int(key) % 2
        if key in live and rng.random() < 0.3:
            log.append(gone(key, live.pop(key) + 1, offset, partition))
            state.pop(key)
        else:
            live[key] = live.get(key, 0) + 1
            log.append(put(key, offset, live[key], offset, partition))
            state[key] = (offset, live[key])
    path = str(tmp_path / "t")
    upsert = upsert_to(path)
    cuts = sorted(rng.sample(range(1, 60), 2))
    batches = [log[begin:end] for begin, end in zip([0, *cuts], [*cuts, 60], strict=True)]
    for number, rows in enumerate(batches):
        upsert(spark.createDataFrame(rng.sample(rows, len(rows)), COLUMNS), number)
    number = Snapshots(spark, path).latest().number
    again = rng.randrange(len(batches))
    upsert(spark.createDataFrame(batches[again], COLUMNS), again)
    assert table(spark, path) == state
    assert Snapshots(spark, path).latest().number == number, "a repeated batch writes nothing"


@with_spark
@pytest.mark.broker
@pytest.mark.long
def test_a_topic_is_kept_as_a_table(spark, family, tmp_path) -> None:
    """A query that stops and continues keeps a table equal to `read_sow`, with deletes and keys inserted again."""
    family.create("sow")
    path, schema = str(tmp_path / "t"), "id LONG, qty LONG"
    options = family.options | {"startingOffsets": "earliest"}

    def drain():
        stream = stream_sow(spark, family.name, schema, options=options).writeStream.foreachBatch(upsert_to(path))
        query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    with family.transaction("sow") as write:
        for i in range(10):
            write(str(i), f'{{"id":{i},"qty":1}}', version="1", kind="insert")
        write("9", None, version="2", kind="delete")
    drain()
    with family.transaction("sow") as write:
        write("1", '{"id":1,"qty":2}', version="2")
        write("2", None, version="2", kind="expire")
        write("9", '{"id":9,"qty":3}', version="1", kind="insert")
    drain()
    wanted = ["_sow.sow_key", "id", "qty", "_sow.version", "_sow.partition", "_sow.offset"]
    found = read_snapshot(spark, path).select(*wanted).orderBy("sow_key").collect()
    assert found == read_sow(spark, family.name, schema, family.options).select(*wanted).orderBy("sow_key").collect()
    assert [row["sow_key"] for row in found] == ["0", "1", "3", "4", "5", "6", "7", "8", "9"]


@with_spark
def test_a_writer_that_dies_before_the_switch_does_no_harm(spark, tmp_path) -> None:
    """Rows of a writer that dies are invisible; the repeated batch is complete, and the remains are removed."""
    path = str(tmp_path / "t")
    upsert = upsert_to(path)
    upsert(spark.createDataFrame([put("1", 5, 1, 0)], COLUMNS), 0)
    batch = spark.createDataFrame([put("1", 6, 2, 1)], COLUMNS)
    # All that a writer does before the switch, and its name half written.
    left = Snapshots(spark, path).write(batch.drop("kind"), {0: 2})
    (tmp_path / "t/_snapshots/.half").write_text('{"direc')
    assert table(spark, path) == {"1": (5, 1)}
    upsert(batch, 1)
    assert table(spark, path) == {"1": (6, 2)}
    assert not (tmp_path / "t/data" / left.directory).exists()
    assert sorted(p.name for p in (tmp_path / "t/_snapshots").iterdir() if not p.name.startswith(".")) == [
        "1.json",
        "2.json",
    ]


@with_spark
@pytest.mark.long
def test_a_reader_keeps_its_state_and_old_ones_go(spark, tmp_path) -> None:
    """A reader keeps the state that it has opened; snapshots beyond `keep` are removed."""
    path = str(tmp_path / "t")
    upsert = upsert_to(path, keep=2)
    upsert(spark.createDataFrame([put("1", 5, 1, 0)], COLUMNS), 0)
    opened = read_snapshot(spark, path)
    upsert(spark.createDataFrame([put("1", 6, 2, 1)], COLUMNS), 1)
    assert [row["qty"] for row in opened.collect()] == [5]
    upsert(spark.createDataFrame([put("1", 7, 3, 2)], COLUMNS), 2)
    assert len(list((tmp_path / "t/data").iterdir())) == 2
    assert [snapshot.number for snapshot in Snapshots(spark, path).all()] == [2, 3]


@with_spark
def test_a_second_writer_is_stopped(spark, tmp_path) -> None:
    """Of two queries on one table, which would undo each other's batches, the later one stops."""
    path = str(tmp_path / "t")
    rows = spark.createDataFrame([put("1", 5, 1, 0)], COLUMNS)
    one, other = Snapshots(spark, path), Snapshots(spark, path)
    mine, theirs = one.write(rows, {0: 1}), other.write(rows, {0: 1})
    one.switch(mine)
    with pytest.raises(Stop, match="somebody else has written snapshot 1 meanwhile"):
        other.switch(theirs)
    assert one.latest() == mine


@with_spark
@pytest.mark.parametrize(
    ("columns", "rows", "arguments", "said"),
    [
        (COLUMNS.replace(", offset LONG", ""), [put("1", 5, 1, 0)[:-1]], {}, "has no column 'offset'"),
        (
            COLUMNS,
            [gone("1", 1, 7)],
            {"key": ["id"]},
            r"null in its key .*delete, .*offset 7; .*\['_sow\.sow_key'\]",
        ),
        (COLUMNS, [put("1", 5, 1, 0)], {"format": "delta"}, "start it with spark.jars.packages=io.delta:delta-spark"),
        (COLUMNS, [put("1", 5, 1, 0)], {"format": "iceberg"}, "packages=org.apache.iceberg:iceberg-spark-runtime"),
    ],
)
def test_a_batch_that_cannot_be_merged_is_refused(spark, tmp_path, columns, rows, arguments, said) -> None:
    """A batch that cannot be merged is an error with the column, the row or the package, and nothing is written."""
    path = str(tmp_path / "t")
    with pytest.raises(ConfigurationError, match=said):
        upsert_to(path, **arguments)(spark.createDataFrame(rows, columns), 0)
    assert not Path(path).exists()
    with pytest.raises(ConfigurationError, match="there is no table at"):
        read_snapshot(spark, path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"key": "sow_key"}, "give a list of column names"),
        ({"key": []}, "give a list of column names"),
        ({"format": "orc"}, "give 'parquet', 'delta' or 'iceberg'"),
        ({"keep": 0}, "at least the last snapshot"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said) -> None:
    """Wrong arguments are refused before a query starts."""
    with pytest.raises(ConfigurationError, match=said):
        upsert_to("/t", **arguments)


PATHS = MergedPaths([("_sow", "sow_key")], ("_sow", "partition"), ("_sow", "offset"))


def test_the_merge_statement() -> None:
    """The MERGE statement removes, replaces and inserts by key, only for later offsets."""
    said = merge_sql("lake.db.orders", "iceberg", PATHS, ["a`b", "_sow"], "batch")
    newer = "(s.`_sow`.`partition` <> t.`_sow`.`partition` OR s.`_sow`.`offset` > t.`_sow`.`offset`)"
    gone = "s.`__kind` IN ('delete', 'expire')"
    changes = "t.`a``b` = s.`a``b`, t.`_sow` = s.`_sow`"
    values = "(s.`a``b`, s.`_sow`)"
    assert said.split("\n") == [
        "MERGE INTO lake.db.orders AS t USING `batch` AS s ON t.`_sow`.`sow_key` <=> s.`_sow`.`sow_key`",
        f"WHEN MATCHED AND {gone} AND {newer} THEN DELETE",
        f"WHEN MATCHED AND NOT ({gone}) AND {newer} THEN UPDATE SET {changes}",
        f"WHEN NOT MATCHED AND NOT ({gone}) THEN INSERT (`a``b`, `_sow`) VALUES {values}",
    ]


def test_the_create_statement() -> None:
    """The CREATE TABLE statement names a table by name, and for Delta also by path."""
    fields = [StructField("a b", LongType()), StructField("sow_key", StringType())]
    columns = "(`a b` bigint, `sow_key` string)"
    assert create_sql("db.t", "iceberg", fields) == f"CREATE TABLE IF NOT EXISTS db.t {columns} USING iceberg"
    assert create_sql("/lake/t", "delta", fields) == f"CREATE TABLE IF NOT EXISTS delta.`/lake/t` {columns} USING delta"


HOSTILE = "x: int>) USING iceberg LOCATION 's3a://elsewhere/t' -- "
"""The name of a nested field, which a publisher of JSON chooses."""


def test_a_name_inside_a_struct_is_no_part_of_the_create_statement() -> None:
    """Names of nested fields are quoted as those of columns are, and a timestamp is an instant in every session."""
    inner = StructType([StructField("px-`last", LongType()), StructField(HOSTILE, TimestampType())])
    said = create_sql("db.t", "iceberg", [StructField("a", ArrayType(inner))])
    columns = f"(`a` array<struct<`px-``last`: bigint, `{HOSTILE}`: timestamp_ltz>>)"
    assert said == f"CREATE TABLE IF NOT EXISTS db.t {columns} USING iceberg"


class Catalog:
    """A session whose catalog refuses statements."""

    def __init__(self, **errors: PySparkException) -> None:
        self.errors, self.statements = errors, []

    def sql(self, statement: str):
        """A result without rows, or the error of the statement's first word."""
        if (error := self.errors.get(statement.partition(" ")[0])) is not None:
            raise error
        self.statements.append(statement)
        return SimpleNamespace(collect=list)


def refusal(condition: str | None, kind=AnalysisException):
    """An error of Spark with this condition."""
    return kind("Permission denied\n\tat java", errorClass=condition)


ALTER = "ALTER TABLE lake.db.t SET TBLPROPERTIES ('sowstream.topic' = 'orders.sow id1')"


@pytest.mark.parametrize(
    ("errors", "statements", "warned", "follows"),
    [
        ({}, ["SHOW TBLPROPERTIES lake.db.t", ALTER], None, True),
        ({"SHOW": refusal("TABLE_OR_VIEW_NOT_FOUND")}, [], None, False),
        ({"SHOW": refusal("DELTA_MISSING_DELTA_TABLE")}, [], None, False),
        ({"SHOW": refusal("INSUFFICIENT_PERMISSIONS")}, [], "SHOW TBLPROPERTIES lake.db.t", True),
        ({"ALTER": refusal(None)}, ["SHOW TBLPROPERTIES lake.db.t"], ALTER, True),
        ({"ALTER": refusal(None, PySparkException)}, ["SHOW TBLPROPERTIES lake.db.t"], ALTER, True),
    ],
)  # fmt: skip
def test_a_table_whose_properties_are_not_the_jobs_is_written(errors, statements, warned, follows) -> None:
    """A statement about the table's topic that is refused is logged, and the job goes on; a missing table is none."""
    session = Catalog(**errors)
    with capture_logs() as lines:
        assert follow_topic(session, "lake.db.t", "iceberg", "orders.sow", "id1") is follows
    assert session.statements == statements
    assert [(line["log_level"], line["statement"]) for line in lines] == ([("warning", warned)] if warned else [])
    assert all(line["error"].endswith("Permission denied") for line in lines)


@with_spark
def test_sparks_parser_takes_the_sql(spark) -> None:
    """Spark's parser accepts the SQL: without a package, the only error is the missing table."""
    said = merge_sql("nowhere.orders", "iceberg", PATHS, ["qty", "_sow"], "batch")
    parser = spark._jsparkSession.sessionState().sqlParser()
    assert "MergeIntoTable" in parser.parsePlan(said).toString()
    inner = StructType([StructField(HOSTILE, TimestampType())])
    created = parser.parsePlan(create_sql("lake.db.t", "iceberg", [StructField("a", inner)]))
    assert created.columns().head().dataType().fieldNames()[0] == HOSTILE


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)  # The first start fetches the package.
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_that_knows_merge_ends_with_the_last_state(table_format, tmp_path, random_seed) -> None:
    """A table of Delta and one of Iceberg have the last state after repeated batches, each in its own session."""
    state = {}
    for identity, qty, key, kind, version, _, _ in itertools.chain.from_iterable(batches(random_seed)):
        state[key] = [identity, qty, version]
        if kind in ("delete", "expire"):
            del state[key]
    job = [sys.executable, "-m", "tests.spark.upserting_job", table_format, str(tmp_path), str(random_seed)]
    run = subprocess.run(job, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found, columns, (*follows, refusal) = map(json.loads, run.stdout.splitlines()[-3:])
    assert found == state
    assert columns == ["id", "qty", "_sow"]
    assert follows == [False, True, True]
    assert "has the offsets of the topic orders.sow orders, and this one is orders_12.sow orders_12: " in refusal
