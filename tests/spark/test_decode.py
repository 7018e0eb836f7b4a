from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from uuid import UUID

import pytest

from processor.errors import ConfigurationError, FilterError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sowstream[avro]'")

from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812

from processor.codec import CodecOptions, load_codec
from spark_integration import read_sow, stream_deltas, stream_sow
from tests.codec.avro_world import file_codec, plain, record
from tests.spark.history import History
from tests.spark.registry_server import schema_server

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

WHEN = dt.datetime(2024, 2, 29, 12, 30, 0, 250_000, dt.UTC)
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}
ADDRESS = record(("zip", "string"), ("street", ["null", "string"], None), name="Address")
FIRST = record(("id", "long"), ("qty", "int"), ("low", "double"), ("high", "double"))
SECOND = record(
    # The same bytes mean other fields than before.
    ("id", "long"),
    ("high", "double"),
    ("low", "double"),
    ("qty", "long"),
    ("price", ["null", PRICE], None),
    ("at", ["null", {"type": "long", "logicalType": "timestamp-millis"}], None),
    ("local", ["null", {"type": "long", "logicalType": "local-timestamp-micros"}], None),
    ("day", ["null", {"type": "int", "logicalType": "date"}], None),
    ("ref", ["null", {"type": "string", "logicalType": "uuid"}], None),
    ("raw", ["null", "bytes"], None),
    ("side", {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}, "SELL"),
    ("tags", {"type": "array", "items": "string"}, []),
    ("more", {"type": "map", "values": ["null", "int"]}, {}),
    ("home", ["null", ADDRESS], None),
)
UNSAID = {"price": None, "at": None, "local": None, "day": None, "ref": None, "raw": None, "side": "SELL", "tags": []}
UNSAID |= {"more": {}, "home": None}
ORDER = record(
    ("id", "long"),
    ("qty", ["null", "int"], None),
    ("note", ["null", "string"], None),
    ("home", ["null", ADDRESS], None),
)


@pytest.fixture
def history(bootstrap: str, unique: str) -> History:
    """A family of topics for one test, not yet created."""
    return History(unique, bootstrap)


def frame(number: int) -> bytes:
    """Confluent's frame with the id of a schema."""
    return b"\0" + number.to_bytes(4)


def drain(stream, name):
    """All records of a stream's topic now, in the order of versions."""
    query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [row.asDict(recursive=True) for row in stream.sparkSession.table(name).orderBy("version").collect()]


def test_each_record_is_decoded_by_the_schema_that_wrote_it(spark, history) -> None:
    """The frame or a header names the schema of a record; the columns are those of the latest schema."""
    new = {"id": 2, "low": 1.5, "high": 2.5, "qty": 2**40, "price": Decimal("12345678901234567.125"), "at": WHEN}
    new |= {"local": dt.datetime(2024, 2, 29, 1, 2, 3, 4), "day": dt.date(1969, 7, 20)}  # noqa: DTZ001
    new |= {"ref": UUID(int=7), "raw": b"\0\xff", "side": "BUY", "tags": ["a", "b"], "more": {"x": 1, "y": None}}
    new |= {"home": {"zip": "8", "street": None}}
    history.create("sow", 2)
    with schema_server() as registry:
        first = registry.register("elsewhere", FIRST)
        second = registry.register(f"{history.name}.publish-value", SECOND)
        old = plain(FIRST, {"id": 1, "qty": 3, "low": 0.5, "high": 9.5})
        history.write("sow", ("1", frame(first) + old))
        history.write("sow", ("2", frame(second) + plain(SECOND, new)), partition=1, headers={"version": "4"})
        history.write("sow", ("3", old), headers={"__value_schema_id": frame(first)})
        config = {"message_type": "avro", "schema_registry": {"url": registry.url}}
        table = read_sow(spark, history.name, options=history.options, config=config)
        rows = {row["_sow"]["sow_key"]: row.asDict(recursive=True) for row in table.collect()}
        assert registry.written == []

    assert table.dtypes[:6] == [
        ("id", "bigint"),
        ("high", "double"),
        ("low", "double"),
        ("qty", "bigint"),
        ("price", "decimal(20,3)"),
        ("at", "timestamp"),
    ]
    assert rows["2"].pop("at").astimezone(dt.UTC) == WHEN
    assert rows["2"]["_sow"]["version"] == 4
    fields = {key: {name: row[name] for name in SECOND_NAMES if name in row} for key, row in rows.items()}
    told = {**new, "ref": str(UUID(int=7))}
    del told["at"]
    assert fields["2"] == told
    assert fields["1"] == fields["3"] | {"id": 1} == {"id": 1, "qty": 3, "low": 0.5, "high": 9.5} | UNSAID


SECOND_NAMES = [field["name"] for field in SECOND["fields"]]


def test_avro_deltas_list_their_fields(spark, history) -> None:
    """Header `fields` or the writer's schema lists the fields of an Avro delta: other fields are not nulls of it."""
    history.create("delta")
    with schema_server() as registry:
        registry.register(f"{history.name}.publish-value", ORDER)
        part = record(("id", "long"), ("home", record(("zip", "string"), name="Zip")), name="Part")
        subset = registry.register("part", part)
        wide = registry.register("wide", ORDER)
        everything = {"id": 1, "qty": None, "note": None, "home": {"zip": "8", "street": "s"}}
        deltas = [
            (wide, plain(ORDER, everything), {"kind": "insert"}),
            (wide, plain(ORDER, {**everything, "home": None}), {"fields": '["/id","/note"]'}),
            (subset, plain(part, {"id": 1, "home": {"zip": "9"}}), {}),
            (wide, plain(ORDER, everything), {"fields": '["/id"]', "removed": '["/home/street"]'}),
            (wide, plain(ORDER, everything), {"fields": '["/id"]', "empty": "true"}),
            (wide, plain(ORDER, everything), {"fields": '["/id"]', "kind": "delete"}),
        ]
        for version, (schema, data, headers) in enumerate(deltas, 1):
            history.write("delta", ("1", frame(schema) + data), headers={"version": str(version), **headers})
        config = {"message_type": "avro", "schema_registry": {"url": registry.url}}
        options = history.options | {"startingOffsets": "earliest"}
        stream = stream_deltas(spark, history.name, options=options, config=config)
        told = drain(stream.select("*", "_sow.*").drop("_sow", "timestamp", "headers"), f"{history.name}_deltas")

    usual = {"id": 1, "qty": None, "note": None, "home": None, "kind": "update", "removed": [], "empty": False}
    said = [{name: row[name] for name in [*usual, "changed"]} for row in told]
    assert said == [
        usual
        | {"home": {"zip": "8", "street": "s"}, "kind": "insert"}
        | {"changed": ["/id", "/qty", "/note", "/home/zip", "/home/street"]},
        usual | {"changed": ["/id", "/note"]},
        usual | {"home": {"zip": "9", "street": None}, "changed": ["/id", "/home/zip"]},
        usual | {"changed": ["/id"], "removed": ["/home/street"]},
        usual | {"changed": ["/id"], "empty": True},
        usual | {"changed": ["/id"], "kind": "delete"},
    ]


def test_avro_without_a_registry_has_its_schema_from_a_file(spark, history, tmp_path) -> None:
    """Without a registry, records and unframed deltas are decoded by the schema of a file; a delete is a row."""
    history.create("sow")
    history.create("delta")
    codec = file_codec(ORDER, tmp_path)
    whole = {"id": 1, "qty": 5, "note": None, "home": None}
    history.write("sow", ("1", codec.encode(whole)), headers={"version": "1"})
    history.write("sow", ("1", None), headers={"version": "2"})
    delta, fields = codec.encode_delta({"id": 1, "qty": None})
    history.write("delta", ("1", delta), headers={"version": "3", **dict(fields)})
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}
    options = history.options | {"startingOffsets": "earliest"}
    columns = ["id", "qty", "_sow.kind", "_sow.version"]
    sow = stream_sow(spark, history.name, options=options, config=config).select(columns)
    assert [tuple(row.values()) for row in drain(sow, f"{history.name}_sow")] == [
        (1, 5, "update", 1),
        (None, None, "delete", 2),
    ]
    deltas = stream_deltas(spark, history.name, options=options, config=config).select(*columns, "_sow.changed")
    assert [tuple(row.values()) for row in drain(deltas, f"{history.name}_delta")] == [
        (1, None, "update", 3, ["/id", "/qty"])
    ]


def test_a_record_that_cannot_be_decoded_fails_the_query(spark, history, tmp_path) -> None:
    """A record that cannot be decoded fails the query, and the error has its topic, partition, offset and key."""
    history.create("sow", 2)
    file_codec(ORDER, tmp_path)
    history.write("sow", ("good", plain(ORDER, {"id": 1})), ("bad", b"\x02"), partition=1)
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}
    table = read_sow(spark, history.name, options=history.options, config=config)
    said = rf"{history.name}\.sow, partition 1, offset 1, key 'bad': undecodable: not Avro of the schema Order"
    with pytest.raises(PythonException, match=said):
        table.collect()


def test_an_unknown_schema_id_fails_the_query(spark, history) -> None:
    """A record with an unknown schema id fails the query; no other schema is used for it."""
    history.create("sow")
    with schema_server() as registry:
        registry.register(f"{history.name}.publish-value", ORDER)
        history.write("sow", ("1", frame(77) + plain(ORDER, {"id": 1})))
        config = {"message_type": "avro", "schema_registry": {"url": registry.url}}
        table = read_sow(spark, history.name, options=history.options, config=config)
        with pytest.raises(PythonException, match=r"offset 0, key '1': schema_not_found: .* no schema 77"):
            table.collect()


def test_other_message_types_are_decoded_by_the_callers_schema(spark, history) -> None:
    """Message types without schemas need the columns of the caller; without them the error names the argument."""
    from msgpack import Timestamp

    history.create("sow")
    value = {
        "id": 7,
        "big": 2**53 + 1,
        "at": Timestamp.from_datetime(WHEN),
        "tags": ["a"],
        "more": {"k": b"v"},
        "skipped": {"x": 1},
    }
    history.write("sow", ("7", load_codec("msgpack", CodecOptions()).encode(value)))
    config = {"message_type": "msgpack"}
    with pytest.raises(ConfigurationError, match=r"is of message type msgpack, .*; give a StructType or DDL"):
        read_sow(spark, history.name, options=history.options, config=config)
    schema = "big LONG, at TIMESTAMP, tags ARRAY<STRING>, more MAP<STRING, BINARY>, missing INT"
    (row,) = read_sow(spark, history.name, schema, options=history.options, config=config).collect()
    assert row["at"].astimezone(dt.UTC) == WHEN
    assert (row["big"], row["tags"], row["more"], row["missing"]) == (2**53 + 1, ["a"], {"k": bytearray(b"v")}, None)


def test_a_filter_applies_to_the_full_merged_record(spark, history, tmp_path) -> None:
    """A filter of Avro applies to the last state of a record, also to metadata and fields without a column."""
    history.create("sow")
    codec = file_codec(ORDER, tmp_path)
    for key, qty in ((1, 50), (1, 5), (2, 50), (3, 60)):
        history.write("sow", (str(key), codec.encode({"id": key, "qty": qty, "note": "n", "home": None})))
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}

    def matching(text, schema=None):
        table = read_sow(spark, history.name, schema, options=history.options, config=config, filter=text)
        return sorted(row["sow_key"] for row in table.select("_sow.sow_key").collect())

    assert matching("/qty > 20", "id LONG") == ["2", "3"]
    assert matching("/qty > 20 AND SOW_KEY() != '3' AND MESSAGE_SIZE() > 2") == ["2"]
    with pytest.raises(FilterError, match="column 7"):
        matching("/qty >")


def test_schemas_that_do_not_fit_the_topic_are_refused(spark, history, tmp_path) -> None:
    """The schema `infer` for Avro, a type without values in any message type, and a missing schema are errors."""
    history.create("sow")
    file_codec(ORDER, tmp_path)
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}
    for schema, topic, said in (
        ("infer", config, "schema='infer' is for JSON"),
        ("id INTERVAL DAY", config, "/id is interval day, and no message type has such values"),
        (None, {"message_type": "avro"}, "is of message type avro and has no schema"),
        (None, {"message_type": "avro", "schema": "/nowhere.avsc"}, "the schema /nowhere.avsc cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            read_sow(spark, history.name, schema, options=history.options, config=topic)


def test_a_column_of_avro_has_any_name(spark, history, tmp_path) -> None:
    """An Avro field may have the name of a metadata field, in tables and streams; flat metadata refuses it."""
    history.create("sow")
    history.create("delta")
    codec = file_codec(record(("id", "long"), ("source", "string"), ("changed", "int", 0)), tmp_path)
    for role in ("sow", "delta"):
        value = codec.encode({"id": 1, "source": "s", "changed": 7})
        history.write(role, ("1", value), headers={"source": "x.publish/0/7"})
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}
    with pytest.raises(ConfigurationError, match=r"field 'source' of the schema has the name .*leave metadata='flat'"):
        read_sow(spark, history.name, options=history.options, config=config, metadata="flat")
    (row,) = read_sow(spark, history.name, options=history.options, config=config).collect()
    assert (row["id"], row["source"], row["changed"], row["_sow"]["source"]) == (1, "s", 7, "x.publish/0/7")
    assert json.dumps(row["_sow"]["headers"][0]["key"]) == '"source"'
    options = history.options | {"startingOffsets": "earliest"}
    deltas = stream_deltas(spark, history.name, options=options, config=config)
    (row,) = drain(
        deltas.select("source", "changed", F.col("_sow.changed").alias("paths"), "_sow.version"), history.name
    )
    assert (row["source"], row["changed"], row["paths"]) == ("s", 7, ["/id", "/source", "/changed"])
