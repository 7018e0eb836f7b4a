from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import ConfigurationError, Stop
from spark_integration.pipeline.ingesting.sources import IngestSource, SourceRows
from spark_integration.pipeline.monitor import MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def _ingest(pipeline, **more):
    source = {"format": "json", "path": "./incoming"}
    job = {"job": "ingest", "from": source, "topic": pipeline.world.name, "quarantine": "./quarantine", "writers": 2}
    return pipeline.write(feed=job | more)


@pytest.mark.long
def test_each_line_of_a_file_is_published_once_and_others_are_set_aside(pipeline) -> None:
    """Each line becomes one delta, in the order of its key; one that does not fit is in the quarantine with its place.

    A second run publishes only the files that appeared since.
    """
    _ingest(pipeline, key=["id"])
    pipeline.drop("a.json", {"id": 1, "qty": 1.50}, "", "{broken", {"qty": 3}, {"id": 1, "qty": 4}, [5])
    monitor = pipeline.run()
    pipeline.drop("b.json", {"id": 1, "qty": 6})
    pipeline.run()
    records = pipeline.world.read("publish")
    assert [record.key for record in records] == [b"1"] * 3
    assert [json.loads(record.value)["qty"] for record in records] == [1.5, 4, 6]
    assert {record.headers["command"] for record in records} == {"delta_publish"}
    assert [(row["reason"], row["line"]) for row in pipeline.rejected()] == [
        ("undecodable", 3),
        ("missing_key", 4),
        ("not_an_object", 6),
    ]
    assert all(row["file"].endswith("incoming/a.json") for row in pipeline.rejected())
    assert pipeline.rejected()[0]["row"] == "{broken"
    assert monitor.views()["feed"].counts["published"] == 2
    assert monitor.views()["feed"].quarantined == 3


CSV = [
    "\ufeffid,note,at",
    '1,"see order',
    '7, cancelled",',
    '2,"say ""hi"" to C:\\temp",2026-01-01T00:00:00Z',
    "3,,",
    "4,a,,",
    'x,"b",',
    '5,5" pipe,1900-01-01T00:00:00+00:00',
    "6,today,12:30",
]


JSON = {
    '{"id":1,"px":1234567890123456.7891,"at":"2026-01-01T12:00:00+02:00"}': None,
    "{'id': 2, 'px': 1.5}": None,
    '{"id":3,"px":1.00005}': "/px is not decimal(20,4)",
    '{"id":4,"px":12345678901234567.5}': "the row does not fit the schema: ",
    '{"id":5,"px":"1,5"}': "/px is not decimal(20,4)",
    '{"id":6,"n":200}': "/n is not tinyint",
    '{"id":7,"d":1e400}': "/d is not double",
    '{"id":8,"d":9007199254740993}': "/d is not double",
    '{"id":9,"at":"12:30"}': "/at is not timestamp",
    '{"id":10,"legs":[{"px":1.5},{"px":1.25}]}': "/legs is not array<struct<px:decimal(5,1)>>",
    '{"id":11}{"id":12}': "not one JSON object",
    '{"id":13} and more': "not one JSON object",
    '{"id":14,"px":1e300000000}': "/px is not decimal(20,4)",
    '{"id":15,"legs":[{"px":"1e-300000000"},7]}': "a number with an exponent of more than four digits",
    '{"id":16,"px":1e300000000,"px":1}': "a number with an exponent of more than four digits",
    '{"id":17,"px":1e300000000': "a number with an exponent of more than four digits",
    '{"id":26,"at":" 12:30"}': "/at is not timestamp",
    "{'id':27,'at':'12:30','px':1}": "/at is not timestamp",
    "{'id':28,'px':'1,5'}": "/px is not decimal(20,4)",
    '{"id":18},{"id":19}': "not one JSON object",
    '{"id":20}\t , {"id":21}': "not one JSON object",
    '{"id":22},"mark":1}': "not one JSON object",
    '{"id":23},"legs":[{"px":1.5}]}': "not one JSON object",
    '{"id":24': "not one JSON object",
    '{"id":25,"note":"},{","legs":[{"px":1.5},{"px":2}]}': None,
}
"""Lines, each with its reason, or with none."""


@pytest.mark.long
def test_a_row_of_json_is_published_as_it_is_or_not_at_all(pipeline) -> None:
    """A value that its column cannot hold exactly, and a line of two objects, are in the quarantine with the reason."""
    columns = "id LONG, px DECIMAL(20,4), n TINYINT, d DOUBLE, at TIMESTAMP, legs ARRAY<STRUCT<px: DECIMAL(5,1)>>"
    _ingest(pipeline, key=["id"], nulls="ignore", **{"from": {"path": "./incoming", "schema": columns}})
    pipeline.drop("a.json", *JSON)
    pipeline.run()
    published = {record.key: record.value for record in pipeline.world.read("publish")}
    assert published.keys() == {b"1", b"2", b"25"}
    assert published[b"1"].startswith(b'{"id":1,"px":1234567890123456.7891,"n":null,')
    assert json.loads(published[b"1"])["at"] == "2026-01-01T10:00:00.000000Z"
    rejected = {row["line"]: (row["reason"], row["detail"]) for row in pipeline.rejected()}
    wrong = {line: why for line, why in enumerate(JSON.values(), 1) if why is not None}
    assert rejected.keys() == wrong.keys()
    assert all(rejected[line][0] == "misfit" and rejected[line][1].startswith(why) for line, why in wrong.items())


@pytest.mark.long
def test_rows_are_published_up_to_the_limit_of_the_topic(pipeline_of) -> None:
    """A row of more than Java's producer takes by default is published, and one that the topic refuses is set aside."""
    pipeline = pipeline_of(max_record_bytes=4_000_000, config={"max.message.bytes": "3000000"})
    _ingest(pipeline, key=["id"])
    pipeline.drop("a.json", *({"id": n, "x": "y" * size} for n, size in enumerate((1_048_500, 2_900_000, 3_000_000))))
    pipeline.run()
    assert sorted(len(record.value) for record in pipeline.world.read("publish")) == [1_048_518, 2_900_018]
    assert [(row["line"], row["reason"]) for row in pipeline.rejected()] == [(3, "too_large")]


@pytest.mark.long
def test_formats_of_the_settings_read_times_and_decimals(pipeline) -> None:
    """With `timestampFormat` a time may come first, and with `locale` a comma is the point of a decimal."""
    source = {"path": "./incoming", "schema": "id LONG, at TIMESTAMP, px DECIMAL(9,2)"}
    options = {"timestampFormat": "HH:mm dd.MM.yyyy", "locale": "de"}
    _ingest(pipeline, key=["id"], **{"from": source | {"options": options}})
    pipeline.drop("a.json", {"id": 1, "at": "12:30 01.11.2026", "px": "1,50"})
    pipeline.run()
    [record] = pipeline.world.read("publish")
    assert json.loads(record.value) == {"id": 1, "at": "2026-11-01T12:30:00.000000Z", "px": 1.5}


@pytest.mark.long
def test_a_mapping_sees_the_columns_of_the_source_alone(pipeline) -> None:
    """Columns may have the names of the job's own ones, and a mapping means those of the source."""
    names = ("file", "line", "at", "partition", "raw", "row", "problem", "detail", "json")
    columns = ", ".join(f"{name} STRING" for name in names)
    mapping = {"id": "id", "all": f"concat_ws('/', {', '.join(names)})"}
    source = {"path": "./incoming", "schema": f"id LONG, {columns}"}
    _ingest(pipeline, key=["id"], mapping=mapping, **{"from": source})
    pipeline.drop("a.json", {"id": 1} | {name: name.upper() for name in names})
    pipeline.run()
    [record] = pipeline.world.read("publish")
    assert json.loads(record.value) == {"id": 1, "all": "/".join(names).upper()}


@pytest.mark.parametrize(
    ("expression", "repeats"),
    [
        ("uuid()", False),
        ("cast(rand() * 100 as string)", False),
        ("concat(n, now())", False),
        ("current_date()", False),
        ("monotonically_increasing_id()", False),
        ("sha2(concat_ws('|', n, m), 256)", True),
        ("cast(m as timestamp)", True),
    ],
)
def test_a_key_that_differs_at_each_start_is_refused(spark, tmp_path, expression, repeats) -> None:
    """A repeated micro-batch would have other keys, so that rows are lost or sent twice; other fields may differ."""
    (tmp_path / "a.csv").write_text("n,m\n1,2\n")
    source = IngestSource.model_validate({"format": "csv", "path": str(tmp_path), "schema": "n STRING, m STRING"})
    for mapping, is_accepted in (({"id": expression, "n": "n"}, repeats), ({"id": "n", "at": expression}, True)):
        rows = SourceRows(source, mapping, ("/id",))
        stream = rows.stream(spark.newSession(), {})
        with (
            nullcontext() if is_accepted else pytest.raises(ConfigurationError, match=r"mapping\.id: .* rows would be")
        ):
            rows.texts(spark.createDataFrame([], stream.schema))


@pytest.mark.long
def test_rows_of_a_table_have_the_order_that_is_given(pipeline, spark, unique) -> None:
    """Rows of a key from a table are published in the order of `from.order_by`; without it they are an error."""
    rows = spark.createDataFrame([(1, 5, "b"), (1, 6, "a"), (2, 7, "a")], "id LONG, qty LONG, at STRING")
    rows.write.option("path", str(pipeline.home / "raw")).saveAsTable(unique)
    try:
        _ingest(pipeline, key=["id"], **{"from": {"table": unique}})
        with pytest.raises(ConfigurationError, match=r"rows of the key 1 differ, .* order_by="):
            pipeline.run()
        _ingest(pipeline, key=["id"], **{"from": {"table": unique, "order_by": ["at"]}})
        pipeline.run()
    finally:
        spark.sql(f"DROP TABLE {unique}")
    records = [json.loads(record.value) for record in pipeline.world.read("publish") if record.key == b"1"]
    assert [(record["at"], record["qty"]) for record in records[-2:]] == [("a", 6), ("b", 5)]


@pytest.mark.long
def test_a_file_of_any_age_counts_when_it_appears(pipeline) -> None:
    """A file that appears later and was written months before the others is read; Spark's own limit is a week."""
    _ingest(pipeline, key=["id"])
    pipeline.drop("new.json", {"id": 1})
    pipeline.run()
    old = pipeline.drop("old.json", {"id": 2}, directory="aside")
    os.utime(old, (1_700_000_000, 1_700_000_000))
    old.rename(pipeline.home / "incoming" / "old.json")
    pipeline.run()
    assert {record.key for record in pipeline.world.read("publish")} == {b"1", b"2"}


@pytest.mark.parametrize("is_multi_line", [True, False])
def test_a_csv_value_with_a_line_break_is_published_whole_or_not_at_all(pipeline, is_multi_line) -> None:
    """A row over two lines is a record with its line break, or both lines are in the quarantine; others are exact."""
    source = {"format": "csv", "path": "./incoming", "schema": "id LONG, note STRING, at TIMESTAMP"}
    options = {"multiLine": is_multi_line, "maxFilesPerTrigger": 10}
    _ingest(pipeline, **{"from": source | {"options": options}})
    file = pipeline.drop("a.csv", *CSV)
    file.with_name(".b").write_bytes(b"id,note,at\n8,caf\xe9,\n")
    file.with_name(".b").rename(file.with_name("b.csv"))
    pipeline.run()
    records = {record.key: json.loads(record.value) for record in pipeline.world.read("publish")}
    whole = {b"1": {"id": 1, "note": "see order\n7, cancelled", "at": None}} if is_multi_line else {}
    assert records == whole | {
        b"2": {"id": 2, "note": 'say "hi" to C:\\temp', "at": "2026-01-01T00:00:00.000000Z"},
        b"3": {"id": 3, "note": None, "at": None},
        b"5": {"id": 5, "note": '5" pipe', "at": "1900-01-01T00:00:00.000000Z"},
    }
    rows = [(row["reason"], row["line"], row["row"].partition(",")[0]) for row in pipeline.rejected()]
    lines = [] if is_multi_line else [("misfit", 2, "1"), ("misfit", 3, "7")]
    assert rows == [*lines, ("misfit", 6, "4"), ("misfit", 7, "x"), ("misfit", 9, "6"), ("misfit", 2, "8")]


def test_each_job_runs_in_a_pool_of_its_own(pipeline, monkeypatch) -> None:
    """The tasks of a job share the cores fairly with those of others, as its queries run in a pool of its name."""
    from pyspark import SparkContext

    pools, record = {}, MicroBatches._record

    def recorded(batches, *arguments) -> None:
        pools[batches._name] = SparkContext._active_spark_context.getLocalProperty("spark.scheduler.pool")
        record(batches, *arguments)

    monkeypatch.setattr(MicroBatches, "_record", recorded)
    job = {"job": "ingest", "from": {"path": "incoming"}, "topic": pipeline.world.name}
    pipeline.write(first=job, second=job)
    pipeline.drop("a.json", {"id": 1})
    pipeline.run()
    assert pools == {"first": "first", "second": "second"}
    context = SparkContext._active_spark_context
    assert context.getLocalProperty("spark.scheduler.pool") is None
    assert context.getConf().get("spark.scheduler.mode") == "FAIR"


def test_a_batch_that_is_repeated_sends_the_same_identities(pipeline) -> None:
    """A batch that was cut off after its records were sent is sent again under the same clients and sequences."""
    _ingest(pipeline)
    pipeline.drop("a.json", *({"id": n % 3, "n": n} for n in range(20)))
    pipeline.run()
    first = {(record.headers["client"], record.headers["sequence"]): record.value
             for record in pipeline.world.read("publish")}  # fmt: skip
    for name in ("0", ".0.crc"):
        (pipeline.home / "checkpoints/feed/commits" / name).unlink()
    pipeline.run()
    records = pipeline.world.read("publish")
    assert len(records) == 40
    assert {(record.headers["client"], record.headers["sequence"]): record.value for record in records} == first


@pytest.mark.long
def test_a_checkpoint_that_was_set_back_drops_no_row(pipeline) -> None:
    """After a return to a copy of the checkpoint no identity stands for another row, and the quarantine loses none."""
    _ingest(pipeline)
    checkpoint, copy = pipeline.home / "checkpoints", pipeline.home / "copy"
    pipeline.drop("a.json", {"id": 1, "n": 1})
    pipeline.run()
    shutil.copytree(checkpoint, copy)
    lost = pipeline.drop("b.json", {"id": 1, "n": 2}, "{broken")
    pipeline.run()
    lost.unlink()
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    pipeline.drop("c.json", {"id": 1, "n": 3}, "{broken too")
    pipeline.run()
    records = pipeline.world.read("publish")
    assert [json.loads(record.value)["n"] for record in records] == [1, 2, 3]
    assert len({record.headers["client"] for record in records}) == 1
    sequences = [int(record.headers["sequence"]) for record in records]
    assert sequences == sorted(set(sequences))
    assert [row["row"] for row in pipeline.rejected()] == ["{broken", "{broken too"]


def test_without_a_quarantine_a_row_that_does_not_fit_stops_the_job(pipeline) -> None:
    """The error has the file, the line and the reason, and nothing of the batch is published."""
    pipeline.write(feed={"job": "ingest", "from": {"path": "incoming"}, "topic": pipeline.world.name})
    pipeline.drop("a.json", {"id": 1}, {"no": "key"})
    with pytest.raises(Stop, match=r"feed: rows that do not fit.*incoming/a.json, line 2: missing_key"):
        pipeline.run()
    assert pipeline.world.read("publish") == []
