"""Rows that are written to `format("sow")` become the same commands as with `publish_deltas`."""

from __future__ import annotations

import json

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa
from pyspark.sql.types import ArrayType, StringType, StructType

import pyspark_sowstream
from spark_integration import read_sow
from spark_integration.read.source.data_source import SowSource, all_options, comment_of
from spark_integration.read.source.row_writer import messages_of
from spark_integration.read.source.write_options import parse_write_options
from tests.endtoend.world import World
from tests.spark.published import sent

NOWHERE = {"topic": "orders", "kafka.bootstrap.servers": "localhost:1"}
SCHEMA = (
    StructType()
    .add("id", "long")
    .add("a", "integer")
    .add("b", StructType().add("c", "integer").add("d", "integer"))
    .add("names", ArrayType(StringType()))
    .add("dead", "boolean")
)
ROW = {"id": 7, "a": None, "b": {"c": None, "d": 1}, "names": ["a", "/b/c"], "dead": False}

with_spark = [
    pytest.mark.spark,
]


def through_spark(test):
    """Marks tests that start Spark."""
    for mark in with_spark:
        test = mark(test)
    return test


def commands(*rows, schema=SCHEMA, **options):
    """Key, value and headers of the command of each row."""
    given = NOWHERE | {"command": "delta", "key": "id"} | options
    arrow = pa.RecordBatch.from_pylist(list(rows)) if rows else pa.RecordBatch.from_pylist([], schema=pa.schema([]))
    messages = messages_of([arrow], parse_write_options(given, schema), schema)
    return [(one.key.decode(), one.value, dict(one.headers)) for one in messages]


@pytest.mark.parametrize(
    ("options", "value", "headers"),
    [
        ({"columns": "a,b"}, b'{"id":7,"a":null,"b":{"c":null,"d":1}}', {"command": b"delta_publish"}),
        ({"columns": "a, b", "nulls": "skip"}, b'{"id":7,"b":{"d":1}}', {"command": b"delta_publish"}),
        ({"mask": "names"}, b'{"id":7,"a":null,"b":{"c":null}}', {"command": b"delta_publish"}),
        (
            {"columns": "a", "removed": "names"},
            b'{"id":7,"a":null}',
            {"command": b"delta_publish", "remove": b'["/a","/b/c"]'},
        ),
        ({"command": "record", "columns": "b"}, b'{"id":7,"b":{"c":null,"d":1}}', {"command": b"publish"}),
        ({"command": "delete"}, b"", {"command": b"sow_delete"}),
    ],
)
def test_a_row_is_one_command(options, value, headers) -> None:
    """A row is a delta with some of its fields, a full record, or a delete, under the key of its key columns."""
    assert commands(ROW, **options) == [("7", value, headers)]


def test_a_marked_row_is_a_delete_and_rows_are_in_the_order_of_writing() -> None:
    """A row that `deleted` marks is a delete; rows are sorted by key and order, in any order of the input."""
    rows = [ROW | {"a": 2}, ROW | {"a": 1, "dead": True}, ROW | {"id": 3, "a": 9}]
    told = commands(*rows, columns="a", deleted="dead", orderBy="a")
    assert [(key, value) for key, value, _ in told] == [("3", b'{"id":3,"a":9}'), ("7", b""), ("7", b'{"id":7,"a":2}')]
    assert told == commands(*reversed(rows), columns="a", deleted="dead", orderBy="a")
    with pytest.raises(ConfigurationError, match=r"rows of the key b'7' differ, .* option 'orderBy'"):
        commands(*rows, columns="a")
    assert len(commands(ROW, ROW, columns="a")) == 2, "equal rows need no order"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "nothing says which columns are in a delta, .*columns 'price,note' .* mask .* nulls 'skip'"),
        ({"command": "merge"}, "option 'command' is 'merge'; say 'delta'"),
        ({"key": ""}, "no option 'key'"),
        ({"key": "nobody"}, "option 'key' names 'nobody', and the rows have no such column"),
        ({"key": "b"}, "key column 'b' is struct<.*; a key is made of strings"),
        ({"columns": "a", "mask": "names"}, "option 'mask' says what is in a delta"),
        ({"mask": "a"}, "option 'mask': column 'a' is int, not array<string>"),
        ({"nulls": "drop"}, "option 'nulls' is 'drop'"),
        ({"columns": "a", "orderBy": "b"}, "option 'orderBy': column 'b' is struct<.*: no order"),
        ({"columns": "a", "kafka.message.timeout.ms": "5"}, r"option 'kafka\.message\.timeout\.ms' cannot be given"),
        ({"columns": "a", "filtre": "x"}, "there is no option 'filtre'; did you mean 'filter'"),
    ],
)
def test_wrong_options_are_refused(options, said) -> None:
    """Each wrong option is an error with its name and a remedy, before anything is written."""
    with pytest.raises(ConfigurationError, match=said):
        commands(ROW, **options)


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        ({"id": None}, {"columns": "a"}, "a row has no key, {'id': None}; .*nothing"),
        ({"names": None}, {"mask": "names"}, "the mask of a row is null"),
        ({"names": ["/b/x"]}, {"mask": "names"}, "the mask of a row names '/b/x', which the row has no column"),
    ],
)
def test_rows_that_cannot_be_published_are_refused(row, options, said) -> None:
    """A row without a key, or with a mask that names nothing, fails the task before it writes."""
    with pytest.raises(ConfigurationError, match=said):
        commands(ROW | row, **options)


def test_the_options_of_a_table_are_with_its_columns() -> None:
    """A table in a catalog keeps its options in a comment; secrets in it are refused, and so is a table without."""
    catalog = {"provider": "sow", "owner": "ann", "option.topic": "orders", "topic": "orders", "schema": "id STRING"}
    comment = comment_of(catalog)
    schema = StructType().add("id", "string").add("_sow", "string", metadata={"comment": comment})
    assert all_options({}, schema) == {"topic": "orders", "schema": "id STRING"}
    assert all_options({"topic": "copy"}, schema)["topic"] == "copy"
    assert comment_of({"topic": "orders"}) is None
    for name in (
        "kafka.sasl.password", "kafka.ssl.key.pem", "kafka.sasl.oauthbearer.client.secret", "kafka.ssl.keystore.key",
        "kafka.sasl.oauthbearer.assertion.private.key.passphrase", "kafka.sasl.oauthbearer.config",
    ):  # fmt: skip
        with pytest.raises(
            ConfigurationError, match=f"option '{name}' would be shown .* config 'sowstream.yaml'"
        ) as told:
            comment_of(catalog | {name: "hunter2"})
        assert "hunter2" not in str(told.value)
    with pytest.raises(ConfigurationError, match=r"OPTIONS \(topic '…', schema 'id string'"):
        all_options({}, StructType().add("id", "string"))


def test_spark_finds_the_source_by_its_package() -> None:
    """Spark looks for `DefaultSource` in packages named `pyspark_*`; ours has the source `sow`."""
    assert pyspark_sowstream.DefaultSource is SowSource
    assert pyspark_sowstream.DefaultSource.name() == "sow"


@through_spark
@pytest.mark.long
def test_values_are_those_of_publish_deltas(spark) -> None:
    """Every type of column is written as `publish_deltas` writes it."""
    rows = spark.sql(
        """
        SELECT id, 'ø "1"' AS text, CAST(id AS DOUBLE) / 3 AS d, CAST(0.1 AS FLOAT) AS f, double('NaN') AS nan,
        -double('Infinity') AS inf, CAST(12345678901234567890.25 AS DECIMAL(38,2)) AS big, X'00FF' AS bytes,
        true AS yes, DATE'2026-01-02' AS day, TIMESTAMP'2026-01-02 03:04:05.678901' AS at,
        TIMESTAMP_NTZ'2026-01-02 03:04:05' AS here, map('a', 1, 'b', null) AS m,
        from_json('[{"t":1},{}]', 'ARRAY<STRUCT<t: INT>>') AS list, CAST(null AS INT) AS none FROM range(2)
        """
    )
    for options, arguments in (
        ({"columns": ",".join(rows.columns)}, {"columns": rows.columns}),
        ({"nulls": "skip"}, {"nulls": "skip"}),
    ):
        given = NOWHERE | {"command": "delta", "key": "id"} | options
        messages = messages_of(rows.toArrow().to_batches(), parse_write_options(given, rows.schema), rows.schema)
        expected = {key: json.loads(value) for key, value, _ in sent(rows, **arguments)}
        assert {one.key.decode(): json.loads(one.value) for one in messages} == expected


@pytest.mark.long
@through_spark
@pytest.mark.broker
def test_a_table_in_sql_is_read_and_inserted_into(spark, bootstrap, tmp_path, unique) -> None:
    """A table of the catalog is read and published to by SQL and DataFrames, also in another session."""
    world = World(bootstrap, tmp_path, unique)
    options = {"topic": unique, "kafka.bootstrap.servers": bootstrap, "schema": "id LONG, qty LONG, note STRING"}
    options |= {"command": "delta", "key": "id", "nulls": "skip"}
    name = f"t_{unique}"

    def create(table, given):
        listed = ", ".join(f"'{option}' '{text}'" for option, text in given.items())
        spark.sql(f"CREATE TABLE {table} USING sow OPTIONS ({listed})")

    create(name, options)
    create(f"{name}_in", options | {"schema": "id LONG, qty LONG", "metadata": "none"})
    try:
        world.start()
        spark.sql(f"INSERT INTO {name} VALUES (1, 5, null, null)")
        spark.sql(f"INSERT INTO {name}_in SELECT id + 1, qty + 1 FROM VALUES (1, 5) AS t(id, qty)")
        world.settle()
        # Spark finds package `pyspark_sowstream` by itself.
        other = spark.newSession()
        assert sorted(map(tuple, other.sql(f"SELECT id, qty, note, _sow.version FROM {name}").collect())) == [
            (1, 5, None, 1), (2, 6, None, 1)
        ]  # fmt: skip
        rows = spark.createDataFrame([(1, "n")], "id LONG, note STRING")
        rows.write.format("sow").mode("append").options(**options).save()
        deletes = spark.createDataFrame([(2,)], "id LONG")
        deletes.write.format("sow").mode("append").options(**options | {"command": "delete"}).save()
        world.settle()
        table = read_sow(spark, unique, options["schema"], {"kafka.bootstrap.servers": bootstrap})
        assert [tuple(row) for row in table.select("id", "qty", "note").collect()] == [(1, 5, "n")]
        clients = {dict(message.headers)["client"] for message in world.read("publish")}
        assert all(client.startswith("spark/") for client in clients)
        assert world.read("dlq") == []
    finally:
        spark.sql(f"DROP TABLE {name}")
        spark.sql(f"DROP TABLE {name}_in")
        world.close()
