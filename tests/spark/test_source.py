from __future__ import annotations

import datetime as dt
import json
import time

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PythonException

from spark_integration import read_sow
from spark_integration.source import register

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.slow,
    # The first start fetches the connector.
    pytest.mark.timeout(600),
    # PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SCHEMA = "id LONG, customer STRUCT<name: STRING, city: STRING>, balance DECIMAL(12,2), open BOOLEAN, tags ARRAY<STRING>"
ANN = '{"id":1,"customer":{"name":"Ann","city":"Oslo"},"balance":10.25,"open":true,"tags":["a","b"]}'
PAST, FUTURE = "1000", "4102444800000"


@pytest.fixture
def orders(spark, family):
    """A topic with updates, deletes, expired records and what was rolled back; the source is known."""
    register(spark)
    family.create("sow")
    with family.transaction("sow") as write:
        for i in range(20):
            write(str(i), json.dumps({"id": i}), version="1", kind="insert", source=f"orders.publish/0/{i}")
    with family.transaction("sow", abort=True) as write:
        write("1", '{"id":666}', version="2")
        write("2", None, version="2", kind="delete")
    with family.transaction("sow") as write:
        write("1", ANN, version="2", client="ø", correlation_id="abc")
        write("2", None, version="2", kind="delete")
        write("3", '{"id":3}', version="2", expires_at=PAST)
        write("4", '{"id":4}', version="2", expires_at=FUTURE)
        write("5", '{"id":5}', version="no number", expires_at="never")
    return family


def source(spark, family, **options):
    """A reader of the family's table."""
    return spark.read.format("sow").options(topic=family.name, **family.options, **options)


def rows(table):
    """All rows, by key."""
    return sorted((row.asDict(recursive=True) for row in table.collect()), key=lambda row: row["sow_key"])


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_the_table_is_that_of_read_sow(spark, orders, schema) -> None:
    """Row for row and column for column: the last committed record of each key, not deleted, not expired."""
    table = source(spark, orders, **({"schema": schema} if schema else {})).load()
    expected = read_sow(spark, orders.name, schema, options=orders.options)
    assert table.dtypes == expected.dtypes
    found = rows(table)
    assert found == rows(expected)
    assert [row["sow_key"] for row in found] == sorted({str(i) for i in range(20)} - {"2", "3"})


def test_every_partition_has_a_task(spark, orders) -> None:
    """They are read side by side."""
    assert source(spark, orders).load().rdd.getNumPartitions() == 4


def test_a_view_is_read_anew_each_time(spark, orders) -> None:
    """By SQL alone, and a query sees what was committed when it began."""
    options = {"topic": orders.name, **orders.options, "schema": "id LONG"}
    listed = ", ".join(f"'{name}' '{text}'" for name, text in options.items())
    spark.sql(f"CREATE TEMP VIEW {orders.name} USING sow OPTIONS ({listed})")
    try:
        query = f"SELECT count(*) AS n, max(id) AS last FROM {orders.name} WHERE version >= 1"
        assert tuple(spark.sql(query).first()) == (17, 19)
        with orders.transaction("sow") as write:
            write("20", '{"id":20}', version="1", kind="insert")
        assert tuple(spark.sql(query).first()) == (18, 20)
    finally:
        spark.catalog.dropTempView(orders.name)


def test_the_filter_sees_what_is_known_of_a_record(spark, orders) -> None:
    """It is evaluated where the topic is read, with the key, the time, the size and the publisher's id."""
    text = f"SOW_KEY() = '1' AND CORRELATION_ID() = 'abc' AND MESSAGE_SIZE() = {len(ANN)} AND LAST_UPDATED() > 1"
    assert [row["sow_key"] for row in source(spark, orders, filter=text).load().collect()] == ["1"]
    assert source(spark, orders, filter="/id > 100").load().collect() == []


def test_a_cut_is_the_table_as_it_was(spark, orders) -> None:
    """At offsets, and at a moment; later records are not seen."""
    ends = {str(m.partition()): 0 for m in orders.read("sow")}
    for message in orders.read("sow"):
        if message.timestamp()[0]:
            ends[str(message.partition())] = max(ends[str(message.partition())], message.offset() + 1)
    time.sleep(0.01)
    moment = dt.datetime.now(dt.UTC).isoformat()
    before = rows(source(spark, orders).load())
    with orders.transaction("sow") as write:
        write("1", None, version="3", kind="delete")
        write("30", '{"id":30}', version="1", kind="insert")
    offsets = json.dumps({f"{orders.name}.sow": ends})
    # Offsets say no time, and so nothing has expired at them.
    assert {row["sow_key"] for row in rows(source(spark, orders, endingOffsets=offsets).load())} == {
        row["sow_key"] for row in before
    } | {"3"}
    assert rows(source(spark, orders, at=moment).load()) == before
    with pytest.raises((AnalysisException, PythonException), match="option at is before the oldest record"):
        source(spark, orders, at="1999-01-01T00:00Z", allowCompacted="true").load().collect()


def test_no_topic_is_no_empty_table(spark, family) -> None:
    """A topic that is not there is said so; one without records is a table without rows."""
    register(spark)
    with pytest.raises((AnalysisException, PythonException), match=rf"Kafka topic {family.name}\.sow does not exist"):
        source(spark, family).load().collect()
    family.create("sow")
    assert source(spark, family).load().collect() == []


def test_too_much_for_a_partition_is_refused(spark, orders) -> None:
    """A partition whose latest records do not fit is told, with what to do; what was overwritten does not count."""
    with pytest.raises((Py4JJavaError, PythonException), match=r"take more than the 400 bytes .*raise it, .*read_sow"):
        source(spark, orders, maxBytesPerPartition="400").load().collect()


def test_a_record_that_does_not_fit_fails_the_query(spark, orders) -> None:
    """With its place and the field: a null in its place would pass for a value."""
    with pytest.raises((Py4JJavaError, PythonException), match=r"\.sow, partition \d, offset \d+, key .*: /id is int"):
        source(spark, orders, schema="id STRING").load().collect()


def test_it_is_read_as_a_table_only(spark, orders) -> None:
    """A stream and a write are refused with the way to do them; so is an option that nobody knows."""
    with pytest.raises(AnalysisException, match="for a stream use stream_sow"):
        spark.readStream.format("sow").options(topic=orders.name, **orders.options).load().writeStream.format(
            "memory"
        ).queryName("never").start()
    with pytest.raises(AnalysisException, match="use publish_deltas"):
        spark.range(1).write.format("sow").mode("append").save()
    with pytest.raises(AnalysisException, match="did you mean 'filter'"):
        source(spark, orders, filtre="/id = 1").load()
    with pytest.raises((AnalysisException, PythonException), match="No such configuration property"):
        source(spark, orders, **{"kafka.nonsense": "1"}).load().collect()


def test_avro_is_read_by_the_topics_settings(spark, family, bootstrap, tmp_path) -> None:
    """The file of settings says the message type, the schema and where Kafka is."""
    fastavro = pytest.importorskip("fastavro")
    import io

    register(spark)
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    (tmp_path / "sowstream.yaml").write_text(
        f"application_id: {family.name}\nkafka: {{bootstrap.servers: '{bootstrap}'}}\n"
        f"topics: {{{family.name}: {{message_type: avro, schema: order.avsc, key: [/id]}}}}\n"
    )
    family.create("sow")
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(schema), {"id": 7, "note": "x"})
    with family.transaction("sow") as write:
        write("7", made.getvalue(), version="1", kind="insert")
    options = {"topic": family.name, "config": str(tmp_path / "sowstream.yaml")}
    (row,) = spark.read.format("sow").options(**options).load().select("id", "note", "version").collect()
    assert tuple(row) == (7, "x", 1)
