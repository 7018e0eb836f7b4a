from __future__ import annotations

import datetime as dt

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration import read_sow, stream_deltas, stream_sow
from tests.codec.avro_world import file_codec, record
from tests.endtoend.world import World
from tests.spark.history import History

pytestmark = [pytest.mark.spark, pytest.mark.broker]

# Of yesterday: what is older than a topic's retention is deleted while the test looks.
NOON = (dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).replace(hour=12, minute=0, second=0, microsecond=0)
MINUTE = dt.timedelta(minutes=1)


@pytest.fixture
def history(bootstrap: str, unique: str) -> History:
    """A family of topics for one test, not yet created."""
    return History(unique, bootstrap)


def drain(stream, name, mode="append"):
    """All records of a stream's topic now."""
    query = (
        stream.writeStream.format("memory").queryName(name).outputMode(mode).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [row.asDict(recursive=True) for row in stream.sparkSession.table(name).collect()]


def test_timestamps_serve_as_a_watermark(spark, history, tmp_path) -> None:
    """Windows before the watermark are output, the last one is not; decoding in Python keeps the timestamps."""
    history.create("delta")
    encode = file_codec(record(("id", "long")), tmp_path).encode
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}
    for minute in (0, 1, 1, 9):
        history.write("delta", ("1", encode({"id": minute})), at=NOON + minute * MINUTE)
    options = history.options | {"startingOffsets": "earliest"}
    stream = stream_deltas(spark, history.name, options=options, config=config)
    counted = (
        stream.select("_sow.timestamp")
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "2 minutes"))
        .count()
    )
    rows = drain(counted, f"{history.name}_windows")
    assert [(row["window"]["start"].astimezone(dt.UTC), row["count"]) for row in rows] == [(NOON, 3)]


def test_rows_of_streams_have_the_metadata_of_tables(spark, history) -> None:
    """Rows of streams have expiry, source and headers as in tables; columns can be inferred from the SOW topic."""
    history.create("sow")
    history.create("delta")
    history.write("sow", ("1", '{"id":1,"qty":5,"note":"n"}'))
    ends = str(round(NOON.timestamp() * 1000))
    said = {"version": "2", "expires_at": ends, "source": f"{history.name}.publish/0/7"}
    history.write("delta", ("1", '{"id":1,"qty":6}'), headers=said)
    options = history.options | {"startingOffsets": "earliest"}
    stream = stream_deltas(spark, history.name, "infer", options=options)
    assert stream.isStreaming
    (row,) = drain(stream.select("*", "_sow.*").drop("_sow"), f"{history.name}_infer")
    assert (row["id"], row["note"], row["qty"], row["changed"]) == (1, None, 6, ["/id", "/qty"])
    assert (row["expires_at"].astimezone(dt.UTC), row["source"]) == (NOON, said["source"])
    assert {header["key"]: bytes(header["value"]).decode() for header in row["headers"]} == said
    names = ["sow_key", "kind", "version", "timestamp", "expires_at", "source", "headers", "partition", "offset"]
    assert stream.columns == ["id", "note", "qty", "_sow"]
    assert stream.schema["_sow"].dataType.names == [*names, "changed", "removed", "empty"]
    assert stream_sow(spark, history.name, options=options, metadata="flat").columns == ["value", *names]


@pytest.mark.long
def test_avro_from_workers_is_read(spark, bootstrap, tmp_path, unique) -> None:
    """The table of an Avro topic has the state, and its deltas each change: nulls, removals and deletes."""
    schema = record(("id", "long"), ("qty", ["null", "int"], None), ("note", "string", "-"))
    codec = file_codec(schema, tmp_path)
    topic = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc"), "null_policy": "set"}
    world = World(bootstrap, tmp_path, unique, **topic)
    try:
        world.publish([(b"%d" % i, codec.encode({"id": i, "qty": i, "note": "n"}), {}) for i in range(20)])
        for i in range(10):
            data, headers = codec.encode_delta({"id": i, "qty": None})
            world.publish([(b"%d" % i, data, dict(headers))])
        data, headers = codec.encode_delta({"id": 11})
        world.publish([(b"11", data, {**dict(headers), "remove": '["/note"]'}), (b"19", None, {})])
        world.start()
        world.settle()
        options = {"kafka.bootstrap.servers": bootstrap}
        # A life begins at twice the offset of its first command and one; the changes count on from there.
        lives: dict[int, int] = {}
        for command in world.read("publish"):
            lives.setdefault(int(command.key or b""), 2 * command.offset + 1)
        versions = [lives[i] + (i < 10 or i == 11) for i in range(19)]
        table = read_sow(spark, unique, options=options, config=topic).select("id", "qty", "note", "_sow.version")
        assert sorted(tuple(row) for row in table.collect()) == [
            (i, None if i < 10 else i, "-" if i == 11 else "n", versions[i]) for i in range(19)
        ]
        stream = stream_deltas(spark, unique, options=options | {"startingOffsets": "earliest"}, config=topic)
        told = drain(stream.select("id", "qty", "_sow.*").where("kind <> 'insert'"), f"{unique}_deltas")
        assert {row["id"]: row["version"] for row in told} == {i: lives[i] + 1 for i in (*range(10), 11, 19)}
        changes = {row["id"]: (row["qty"], row["changed"], row["removed"], row["kind"]) for row in told}
        assert changes == {i: (None, ["/id", "/qty"], [], "update") for i in range(10)} | {
            11: (None, ["/id", "/note"], [], "update"),
            19: (None, ["/id"], [], "delete"),
        }
    finally:
        world.close()
