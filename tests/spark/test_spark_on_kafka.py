from __future__ import annotations

from decimal import Decimal

import pytest

from processor.errors import ConfigurationError
from processor.wire.partition_marks import first_version

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F  # noqa: N812

from spark_integration import publish_deltas, read_sow, stream_deltas, stream_sow
from tests.endtoend.world import World

pytestmark = [pytest.mark.spark, pytest.mark.broker]

SCHEMA = "id LONG, customer STRUCT<name: STRING, city: STRING>, balance DECIMAL(12,2), open BOOLEAN, tags ARRAY<STRING>"
ANN = '{"id":1,"customer":{"name":"Ann","city":"Oslo"},"balance":10.25,"open":true,"tags":["a","b"]}'
BEN = '{"id":2,"customer":{"name":"Ben"},"balance":null}'


def test_table_is_the_last_committed_record_of_each_key(spark, family) -> None:
    """Updates replace, tombstones remove, a key can be inserted again; aborted and open transactions are invisible."""
    family.create("sow")
    with family.transaction("sow") as write:
        write("1", '{"id":1,"balance":1}', version="1", kind="insert")
        write("2", '{"id":2}', version="1", kind="insert")
        write("3", '{"id":3}', version="1", kind="insert")
        write("4", '{"id":4}', version="1", kind="insert")
    with family.transaction("sow", abort=True) as write:
        write("1", '{"id":1,"balance":666}', version="2")
        write("2", None, version="2", kind="delete")
        write("5", '{"id":5,"balance":666}', version="1", kind="insert")
    with family.transaction("sow") as write:
        write("1", ANN, version="2")
        write("2", BEN, version="2")
        write("3", None, version="2", kind="delete")
        write("4", None, version="2", kind="delete")
        write("4", '{"id":4,"open":false}', version="1", kind="insert")
    with family.transaction("sow", abort=True) as write:
        write("1", '{"id":1,"balance":777}', version="3")
        table = read_sow(spark, family.name, SCHEMA, options=family.options)
        rows = {
            row["sow_key"]: row.asDict(recursive=True) for row in table.select("*", "_sow.*").drop("_sow").collect()
        }

    on_topic = {m.key().decode(): m for m in family.read("sow")}
    described = {
        key: {"sow_key": key, "partition": on_topic[key].partition(), "offset": on_topic[key].offset()} for key in rows
    }
    for key, row in rows.items():
        assert row.pop("timestamp").timestamp() * 1000 == pytest.approx(on_topic[key].timestamp()[1], abs=1)
        headers = [(header["key"], bytes(header["value"])) for header in row.pop("headers")]
        assert headers == on_topic[key].headers()
    nothing = {"customer": None, "balance": None, "open": None, "tags": None, "expires_at": None, "source": None}
    assert rows == {
        "1": described["1"]
        | nothing
        | {"id": 1, "customer": {"name": "Ann", "city": "Oslo"}, "balance": Decimal("10.25"), "open": True}
        | {"tags": ["a", "b"], "version": 2},
        "2": described["2"] | nothing | {"id": 2, "customer": {"name": "Ben", "city": None}, "version": 2},
        "4": described["4"] | nothing | {"id": 4, "open": False, "version": 1},
    }


def test_table_without_schema_is_the_text(spark, family) -> None:
    """Without a schema, the text of a record is unchanged, with its spaces, order of fields and long numbers."""
    family.create("sow")
    text = '{ "b":1.10, "id":"ø/1", "a":123456789012345678901234567890 }'
    with family.transaction("sow") as write:
        write("ø/1", text, version="7")
    rows = (
        read_sow(spark, family.name, options=family.options).select("value", "_sow.sow_key", "_sow.version").collect()
    )
    assert [tuple(row) for row in rows] == [(text, "ø/1", 7)]


def test_record_that_does_not_fit_the_schema_fails_the_query(spark, family) -> None:
    """A text in a number column fails the query, as a null in its place would look like a value."""
    family.create("sow")
    with family.transaction("sow") as write:
        write("1", '{"id":1,"balance":"plenty"}', version="1")
    with pytest.raises(SparkRuntimeException, match=r"sow, partition \d, offset 0, sow_key 1: does not fit the schema"):
        read_sow(spark, family.name, "id LONG, balance LONG", options=family.options).collect()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id LONG, _SOW LONG", "'_SOW' of the schema has the name of a metadata column"),
        ("id LONGISH", "'id LONGISH' is not DDL"),
        ("LONG", "names no fields"),
        (["id"], "schema is a list"),
    ],
)
def test_schema_that_cannot_be_used_is_refused(spark, family, schema, said) -> None:
    """An invalid schema, or one that hides a metadata column, is refused before anything is read."""
    with pytest.raises(ConfigurationError, match=said):
        read_sow(spark, family.name, schema, options=family.options)


def _drain(stream, name):
    """All records of a stream's topic now."""
    query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [
        row.asDict(recursive=True) for row in stream.sparkSession.table(name).orderBy("sow_key", "version").collect()
    ]


def test_deltas_list_their_changes(spark, family) -> None:
    """A null that was set is in `changed`, a missing field is not; removals, empty deltas and kinds are columns."""
    family.create("delta")
    with family.transaction("delta") as write:
        write("1", '{"id":1,"customer":{"name":"Ann"},"balance":5}', version="1", kind="insert")
        write("1", '{"id":1,"balance":null,"customer":{"city":"Oslo"}}', version="2")
    with family.transaction("delta", abort=True) as write:
        write("1", '{"id":1,"balance":666}', version="3")
    with family.transaction("delta") as write:
        write("1", '{"id":1}', version="3", removed='["/balance","/customer/name"]')
        write("1", '{"id":1}', version="4", empty="true")
        write("1", '{"id":1}', version="5", kind="delete")
    stream = stream_deltas(spark, family.name, SCHEMA, options=family.options | {"startingOffsets": "earliest"})
    said = ["id", "customer", "balance", "sow_key", "kind", "version", "changed", "removed", "empty"]
    rows = _drain(stream.select("*", "_sow.*").select(said), f"{family.name}_deltas")

    usual = {"id": 1, "customer": None, "balance": None, "sow_key": "1", "kind": "update"}
    usual |= {"changed": ["/id"], "removed": [], "empty": False}
    assert rows == [
        usual
        | {"customer": {"name": "Ann", "city": None}, "balance": Decimal(5), "version": 1, "kind": "insert"}
        | {"changed": ["/id", "/customer/name", "/balance"]},
        usual
        | {"customer": {"name": None, "city": "Oslo"}, "version": 2, "changed": ["/id", "/balance", "/customer/city"]},
        usual | {"version": 3, "removed": ["/balance", "/customer/name"]},
        usual | {"version": 4, "empty": True},
        usual | {"version": 5, "kind": "delete"},
    ]


def test_a_sow_stream_has_deletes(spark, family) -> None:
    """Every record of the SOW topic is a row, also a tombstone, with or without header `kind`."""
    family.create("sow")
    with family.transaction("sow") as write:
        write("1", '{"id":1}', version="1", kind="insert")
        write("1", '{"id":1}', version="2")
        write("1", None, version="3", kind="expire")
        write("2", None)
    stream = stream_sow(spark, family.name, options=family.options | {"startingOffsets": "earliest"})
    rows = _drain(stream.select("value", "_sow.*").select("value", "sow_key", "kind", "version"), f"{family.name}_sow")
    assert [tuple(row.values()) for row in rows] == [
        ('{"id":1}', "1", "insert", 1),
        ('{"id":1}', "1", "update", 2),
        (None, "1", "expire", 3),
        (None, "2", "delete", None),
    ]


def test_a_worker_merges_records_from_spark_and_spark_reads_the_result(spark, bootstrap, tmp_path, unique) -> None:
    """Deltas from two DataFrames are merged into one record, with a key of two fields, and none is rejected."""
    world = World(bootstrap, tmp_path, unique, key=["/desk", "/id"])
    options = {"kafka.bootstrap.servers": bootstrap}
    orders = spark.range(50).select(F.lit('ø "1"').alias("desk"), F.col("id"), F.lit(5).alias("qty"))
    try:
        publish_deltas(orders, unique, key=["desk", "id"], columns=["qty"], options=options)
        begins = {seen.key: first_version(0, seen.offset) for seen in world.read("publish")}
        world.start()
        world.settle()
        prices = orders.where("id < 20").withColumn("price", F.col("id") * 2)
        publish_deltas(prices, unique, key=["desk", "id"], columns=["price"], options=options)
        world.settle()

        schema = "desk STRING, id LONG, qty LONG, price LONG"
        merged = read_sow(spark, unique, schema, options=options).orderBy("id")
        merged = merged.select("desk", "id", "qty", "price", "_sow.sow_key", "_sow.version")
        keys = [rf'["ø \"1\"","{i}"]' for i in range(50)]
        assert [tuple(row) for row in merged.collect()] == [
            ('ø "1"', i, 5, i * 2 if i < 20 else None, key, begins[key.encode()] + (i < 20))
            for i, key in enumerate(keys)
        ]
        stream = stream_deltas(spark, unique, schema, options=options | {"startingOffsets": "earliest"})
        updates = _drain(stream.select("_sow.*").where("kind = 'update'"), f"{unique}_updates")
        assert [row["changed"] for row in updates] == [["/desk", "/id", "/price"]] * 20
        assert world.read("dlq") == []
    finally:
        world.close()
