from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import Stop
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


@pytest.mark.long
def test_a_decimal_of_json_is_published_with_its_digits_or_not_at_all(pipeline) -> None:
    """A number that its column cannot hold exactly is in the quarantine with the reason; others keep their digits."""
    source = {"format": "json", "path": "./incoming", "schema": "id LONG, px DECIMAL(20,4)"}
    _ingest(pipeline, key=["id"], **{"from": source})
    lines = ['{"id":1,"px":1234567890123456.7891}', '{"id":2,"px":1.00005}', '{"id":3,"px":12345678901234567.5}']
    pipeline.drop("a.json", *lines)
    pipeline.run()
    [record] = pipeline.world.read("publish")
    assert record.value == b'{"id":1,"px":1234567890123456.7891}'
    rejected = {row["line"]: (row["reason"], row["detail"]) for row in pipeline.rejected()}
    assert rejected[2] == ("misfit", "px is '1.00005', which has more than 4 decimals")
    assert rejected[3][0] == "misfit"


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
