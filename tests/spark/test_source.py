from __future__ import annotations

import datetime as dt
import io
import json
import time
from typing import NamedTuple

import pytest

from processor.errors import ConfigurationError, Stop
from processor.kafka.partitioner import partitions_of

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from spark_integration import read_sow
from spark_integration.read.metadata_columns import METADATA
from spark_integration.read.source.data_source import SowSource, register_source
from spark_integration.read.source.latest_rows import metadata_columns
from spark_integration.read.source.source_options import parse_source_options
from spark_integration.read.source.sow_reader import SowSourceReader

pytestmark = pytest.mark.broker

with_spark = [
    pytest.mark.spark,
]


def through_spark(test):
    """Marks tests that start Spark, which takes seconds for each query; others call the methods that Spark calls."""
    for mark in with_spark:
        test = mark(test)
    return test


SCHEMA = "id LONG, customer STRUCT<name: STRING, city: STRING>, balance DECIMAL(12,2), open BOOLEAN, tags ARRAY<STRING>"
ANN = '{"id":1,"customer":{"name":"Ann","city":"Oslo"},"balance":10.25,"open":true,"tags":["a","b"]}'
PAST, FUTURE = "1000", "4102444800000"


@pytest.fixture
def orders(family):
    """A topic with updates, deletes, expired records and aborted transactions."""
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
    register_source(spark)
    return spark.read.format("sow").options(topic=family.name, **family.options, **options)


def rows(table):
    """All rows of a DataFrame, by key."""
    return sorted((row.asDict(recursive=True) for row in table.collect()), key=lambda row: row["_sow"]["sow_key"])


def read(family, schema=None, **options):
    """All rows by key, from the methods that Spark calls."""
    given = {"topic": family.name, **family.options, **options}
    if schema is None:
        schema = SowSource(given).schema()
    reader = SowSourceReader(parse_source_options(given), schema)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["_sow"]["sow_key"])


def keys(found):
    """The keys of rows."""
    return {row["_sow"]["sow_key"] for row in found}


@through_spark
@pytest.mark.parametrize("schema", [SCHEMA, pytest.param(None, marks=pytest.mark.long)])
def test_the_table_is_that_of_read_sow(spark, orders, schema) -> None:
    """The data source has the same rows and columns as `read_sow`: the last committed record of each live key."""
    table = source(spark, orders, **({"schema": schema} if schema else {})).load()
    expected = read_sow(spark, orders.name, schema, options=orders.options)
    assert table.dtypes == expected.dtypes
    found = rows(table)
    assert found == rows(expected)
    assert keys(found) == {str(i) for i in range(20)} - {"2", "3"}


@through_spark
@pytest.mark.long
def test_a_view_is_read_again_for_each_query(spark, orders) -> None:
    """A view in SQL is read again for each query, which sees the records committed before its start."""
    register_source(spark)
    options = {"topic": orders.name, **orders.options, "schema": "id LONG"}
    listed = ", ".join(f"'{name}' '{text}'" for name, text in options.items())
    spark.sql(f"CREATE TEMP VIEW {orders.name} USING sow OPTIONS ({listed})")
    try:
        query = f"SELECT count(*) AS n, max(id) AS last FROM {orders.name} WHERE _sow.version >= 1"
        assert tuple(spark.sql(query).first()) == (17, 19)
        with orders.transaction("sow") as write:
            write("20", '{"id":20}', version="1", kind="insert")
        assert tuple(spark.sql(query).first()) == (18, 20)
    finally:
        spark.catalog.dropTempView(orders.name)


@through_spark
def test_sparks_errors_contain_ours(spark, orders) -> None:
    """The error of Spark for an unknown option contains the message of the data source."""
    with pytest.raises(AnalysisException, match="there is no option 'filtre'; did you mean 'filter'"):
        source(spark, orders, filtre="/id = 1").load()


@pytest.mark.long
def test_every_partition_with_records_has_a_task(orders) -> None:
    """Each partition with records has its own task, up to an end that is fixed before."""
    reader = SowSourceReader(
        parse_source_options({"topic": orders.name, **orders.options}), StructType().add("value", "string")
    )
    parts = reader.partitions()
    assert [part.partition for part in parts] == [0, 1, 2, 3]
    before = [batch.num_rows for part in parts for batch in reader.read(part)]
    with orders.transaction("sow") as write:
        for i in range(40, 60):
            write(str(i), "{}", version="1", kind="insert")
    assert [batch.num_rows for part in parts for batch in reader.read(part)] == before


@pytest.mark.long
def test_the_filter_sees_the_metadata_of_a_record(orders) -> None:
    """The filter is evaluated in the reading task, with key, time, size and correlation id of a record."""
    text = f"SOW_KEY() = '1' AND CORRELATION_ID() = 'abc' AND MESSAGE_SIZE() = {len(ANN)} AND LAST_UPDATED() > 1"
    assert keys(read(orders, filter=text)) == {"1"}
    assert keys(read(orders, filter="/id > 17")) == {"18", "19"}


@pytest.mark.long
def test_a_cut_is_the_table_as_it_was(orders) -> None:
    """A read at offsets or at a moment shows no later records, and an end before all records is refused."""
    ends = dict.fromkeys("0123", 0)
    for message in orders.read("sow"):
        ends[str(message.partition())] = max(ends[str(message.partition())], message.offset() + 1)
    time.sleep(0.01)  # The next records have a later time, in milliseconds.
    moment = dt.datetime.now(dt.UTC).isoformat()
    before = read(orders)
    with orders.transaction("sow") as write:
        write("1", None, version="3", kind="delete")
        write("30", '{"id":30}', version="1", kind="insert")
    assert keys(read(orders)) == keys(before) - {"1"} | {"30"}
    assert read(orders, at=moment) == before
    # Offsets say no time, and so nothing has expired at them.
    offsets = json.dumps({f"{orders.name}.sow": ends})
    assert keys(read(orders, endingOffsets=offsets)) == keys(before) | {"3"}
    with pytest.raises(ConfigurationError, match="option at is before the oldest record"):
        read(orders, at="1999-01-01T00:00Z", allowCompacted="true")


def test_no_topic_is_no_empty_table(family) -> None:
    """A missing topic is an error, and a topic without records is a table without rows."""
    with pytest.raises(ConfigurationError, match=rf"Kafka topic {family.name}\.sow does not exist"):
        read(family)
    family.create("sow")
    assert read(family) == []


@pytest.mark.long
def test_too_much_for_a_partition_is_refused(family) -> None:
    """A partition whose latest records exceed the limit is an error with a remedy; replaced records do not count."""
    family.create("sow")
    with family.transaction("sow") as write:
        for version in range(1, 6):
            write("1", json.dumps("x" * 1000), version=str(version))
    assert keys(read(family, maxBytesPerPartition="1500")) == {"1"}
    with pytest.raises(ConfigurationError, match=r"take more than the 1,200 bytes .*raise it, .*or use read_sow"):
        read(family, maxBytesPerPartition="1200")


def test_a_record_that_does_not_fit_fails_the_query(orders) -> None:
    """A record that does not fit the schema fails the query, with its place and the field."""
    with pytest.raises(Stop, match=r"\.sow, partition \d, offset \d+, key .*: /id is int where .* a boolean"):
        read(orders, StructType().add("id", "boolean"))
    with pytest.raises(Stop, match=r"\.sow, partition \d, offset \d+, key '1': /balance is 10.25, which has no room"):
        read(orders, StructType().add("id", "long").add("balance", "decimal(12,1)"))


def test_properties_that_librdkafka_does_not_know_are_refused(orders) -> None:
    """A property that librdkafka does not know is refused, and the error names librdkafka."""
    with pytest.raises(ConfigurationError, match=r"begin with 'kafka\.': No such configuration property.*librdkafka"):
        read(orders, **{"kafka.nonsense": "1"})


READ_STREAM = r"for a stream use stream_sow\(spark, 'orders', schema, options="
WRITE_STREAM = r"for a stream use publish_deltas\(stream, 'orders', key="


@through_spark
def test_a_stream_fails_when_it_starts_with_the_way_to_do_it(spark, tmp_path) -> None:
    """A query over `readStream.format("sow")`, or into `writeStream.format("sow")`, ends with the function to use."""
    register_source(spark)
    known = {"topic": "orders", "kafka.bootstrap.servers": "localhost:1", "schema": "id LONG"}
    stream = spark.readStream.format("sow").options(**known).load()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0").write_text("1\n")
    numbers = spark.readStream.schema("id LONG").csv(str(tmp_path / "in"))
    for writer, sentence in (
        (stream.writeStream.format("noop"), READ_STREAM),
        (numbers.writeStream.format("sow").options(**known, command="delta", key="id", columns="id"), WRITE_STREAM),
    ):
        with pytest.raises(Exception, match=sentence):
            writer.option("checkpointLocation", str(tmp_path / "state")).start().processAllAvailable()


def test_streams_and_overwriting_are_refused() -> None:
    """A stream, as source and as sink, and a table to be emptied first are refused with the right way to do it."""
    made = SowSource({"topic": "orders", "kafka.bootstrap.servers": "localhost:9092"})
    with pytest.raises(ConfigurationError, match=READ_STREAM):
        made.streamReader(StructType())
    with pytest.raises(ConfigurationError, match=WRITE_STREAM):
        made.streamWriter(StructType(), overwrite=False)
    with pytest.raises(ConfigurationError, match=r"cannot be overwritten: .* use mode\('append'\)"):
        made.writer(StructType(), overwrite=True)


def test_only_the_partitions_of_the_keys_are_read(orders) -> None:
    """Option `keys` reads the partitions of these keys and their records only; conditions of a query do the same."""
    assert keys(read(orders, keys='["7", 8, "none"]')) == {"7", "8"}
    given = {"topic": orders.name, **orders.options, "keys": '["7"]'}
    (part,) = SowSourceReader(parse_source_options(given), SowSource(given).schema()).partitions()
    assert part.partition == partitions_of(b"7", 4, is_anywhere=False)[0]


class EqualTo(NamedTuple):
    """As in PySpark 4.1."""

    attribute: tuple[str, ...]
    value: object


class In(NamedTuple):
    """As in PySpark 4.1."""

    attribute: tuple[str, ...]
    value: tuple[object, ...]


class GreaterThan(NamedTuple):
    """As in PySpark 4.1."""

    attribute: tuple[str, ...]
    value: object


@pytest.mark.long
def test_conditions_that_name_keys_narrow_the_read(orders, tmp_path) -> None:
    """Conditions on the key narrow the keys, all others do not, and Spark still evaluates every one of them."""
    (tmp_path / "sowstream.yaml").write_text(f"topics: {{{orders.name}: {{key: [/id]}}}}\n")
    given = {"topic": orders.name, **orders.options, "pushFilters": "true"}
    schema = StructType().add("id", "long").add("note", "string").add("_sow", METADATA)

    def read_with(*conditions, **more):
        reader = SowSource(given | more).reader(schema)
        assert list(reader.pushFilters(conditions)) == list(conditions)
        return keys(row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist())

    every = {str(i) for i in range(20)} - {"2", "3"}
    key = ("_sow", "sow_key")
    assert read_with(EqualTo(key, "7")) == {"7"}
    assert read_with(In(key, ("7", "8")), In(key, ("8", "9"))) == {"8"}
    assert read_with(EqualTo(key, None), GreaterThan(key, "7"), EqualTo(("note",), "7")) == every
    assert read_with(EqualTo(("id",), 7)) == every, "the topic's key is not known without its settings"
    config = {"config": str(tmp_path / "sowstream.yaml")}
    assert read_with(EqualTo(("id",), 7), **config) == {"7"}
    assert read_with(EqualTo(("id",), 7.0), EqualTo(("id",), True), **config) == every
    assert not hasattr(SowSource({**given, "pushFilters": "false"}).reader(schema), "pushFilters"), (
        "refused by Spark 4.1"
    )


def test_fields_have_the_names_of_metadata(family) -> None:
    """A field may be called as metadata is, with `_sow` next to it and in a table without metadata."""
    family.create("sow")
    with family.transaction("sow") as write:
        write("1", '{"version":7,"offset":"x"}', version="3")
    record = StructType().add("version", "long").add("offset", "string")
    (row,) = read(family, StructType([*record.fields, *metadata_columns("fail", "struct")]))
    assert (row["version"], row["offset"], row["_sow"]["version"]) == (7, "x", 3)
    given = {"topic": family.name, **family.options, "metadata": "none"}
    reader = SowSource(given).reader(record)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"version": 7, "offset": "x"}]


def test_a_misfit_is_a_row(family) -> None:
    """With `onMisfit`, a record that does not fit is a row with its reason, and the others are as they are."""
    family.create("sow")
    with family.transaction("sow") as write:
        write("1", '{"id":1,"n":5}')
        write("2", '{"id":"x"}')
        write("3", "{")
        write("4", '{"id":4,"n":999}')
    schema = StructType().add("id", "long").add("n", "byte")
    schema = StructType([*schema.fields, *metadata_columns("column", "struct")])
    found = {row["_sow"]["sow_key"]: row for row in read(family, schema, onMisfit="column")}
    reasons = {key: row["_sow"]["misfit"] and row["_sow"]["misfit"]["reason"] for key, row in found.items()}
    assert (found["1"]["id"], found["1"]["n"], reasons.pop("1")) == (1, 5, None)
    assert [found[key]["id"] for key in "234"] == [None] * 3
    assert reasons["2"] == "/id is str where the schema means an integer"
    assert reasons["3"].startswith("undecodable")
    assert reasons["4"] == "/n is 999, which has no room in 8 bits"
    misfit = found["3"]["_sow"]["misfit"]
    assert (misfit["value"], misfit["topic"]) == (b"{", f"{family.name}.sow")


def test_avro_is_read_by_the_topics_settings(family, bootstrap, tmp_path) -> None:
    """Message type, schema and servers of an Avro topic come from the settings file."""
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    (tmp_path / "sowstream.yaml").write_text(
        f"application_id: {family.name}\nkafka: {{bootstrap.servers: '{bootstrap}'}}\n"
        f"topics: {{{family.name}: {{message_type: avro, schema: {tmp_path}/order.avsc, key: [/id]}}}}\n"
    )
    family.create("sow")
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(schema), {"id": 7, "note": "x"})
    with family.transaction("sow") as write:
        write("7", made.getvalue(), version="1", kind="insert")
    (row,) = read(family, config=str(tmp_path / "sowstream.yaml"), filter="/note = 'x'")
    assert (row["id"], row["note"], row["_sow"]["version"]) == (7, "x", 1)
