from __future__ import annotations

import json
import time
from decimal import Decimal

import pytest

from processor.errors import ConfigurationError
from processor.merge.key import KeyFields

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration.publish.publish import delete_records, publish_deltas, publish_records
from tests.spark.published import bodies, planned_ms, sent

pytestmark = [pytest.mark.spark, pytest.mark.broker]

NULLS = "id STRING, a INT, b STRUCT<c: INT, d: INT>, changed ARRAY<STRING>"


def test_deltas_are_published_where_workers_look_for_them(spark, family) -> None:
    """Each row is one delta of the named columns, with its command, on the partition that Kafka's producers choose."""
    family.create("publish", "dlq")
    rows = spark.range(200).select(
        F.col("id"), F.concat(F.lit("n"), "id").alias("na.me"), F.lit("no").alias("secret"), F.lit(1.5).alias("balance")
    )
    publish_deltas(rows, family.name, key=["id"], columns=["balance", "na.me"], options=family.options)

    published = family.read("publish")
    assert {m.key(): m.value() for m in published} == {
        b"%d" % i: b'{"id":%d,"balance":1.5,"na.me":"n%d"}' % (i, i) for i in range(200)
    }
    assert len(published) == 200
    assert {name for m in published for name, _ in m.headers()} == {"command", "client", "sequence"}
    assert all(dict(m.headers())["command"] == b"delta_publish" for m in published)
    family.publish_by_key("dlq", [m.key() for m in published])
    assert {m.key(): m.partition() for m in published} == {m.key(): m.partition() for m in family.read("dlq")}
    assert {m.partition() for m in published} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("way", "value"),
    [
        ({"columns": ["a", "b"]}, b'{"id":"x","a":null,"b":{"c":null,"d":1}}'),
        ({"columns": ["a", "b"], "nulls": "keep"}, b'{"id":"x","a":null,"b":{"c":null,"d":1}}'),
        ({"columns": ["a", "b"], "nulls": "skip"}, b'{"id":"x","b":{"d":1}}'),
        ({"columns": []}, b'{"id":"x"}'),
        ({"mask": "changed"}, b'{"id":"x","a":null,"b":{"c":null}}'),
        ({"nulls": "skip"}, b'{"id":"x","b":{"d":1},"changed":["a","/b/c"]}'),
    ],
)
def test_three_ways_to_select_the_fields_of_a_delta(spark, way, value) -> None:
    """The fields of a delta are columns with their nulls, those of a mask in each row, or with `skip` all but nulls."""
    rows = spark.createDataFrame([("x", None, (None, 1), ["a", "/b/c"])], NULLS)
    assert [(key, made) for key, made, _ in sent(rows, **way)] == [("x", value)]


@pytest.mark.parametrize("given", [{}, {"nulls": "keep"}])
def test_no_way_chosen_is_an_error_that_names_the_three(spark, family, given) -> None:
    """Without a choice, the error names the three ways with their arguments."""
    rows = spark.createDataFrame([("x", None, (None, 1), ["a"])], NULLS)
    with pytest.raises(ConfigurationError, match=r"columns=\[\.\.\.\] .* mask='column' .* nulls='skip'"):
        publish_deltas(rows, family.name, key=["id"], options=family.options, **given)


@pytest.mark.parametrize(
    ("types", "key"),
    [
        ("a STRING", ("plain",)),
        ("a STRING", ("",)),
        ("a STRING", ('as "it" is\\\n',)),
        ("a BIGINT", (-(2**63),)),
        ("a DECIMAL(38,0)", (Decimal(10**37),)),
        ("a BOOLEAN", (True,)),
        ("a STRING, b INT, c BOOLEAN", ("ø €😀", 7, False)),
        ("a STRING, b STRING", ('\\u000B "quoted", \\ and /', "".join(map(chr, [*range(0x20), 0x7F, 0x2028])))),
    ],
)
def test_key_text_is_the_workers(spark, types, key) -> None:
    """For every type of key, of one field or several, the record key is the text that a worker computes."""
    rows = spark.createDataFrame([key], types)
    ((made, value, _),) = sent(rows, key=rows.columns, columns=[])
    assert made == KeyFields(tuple(f"/{name}" for name in rows.columns)).text(json.loads(value))


def test_row_without_key_stops_before_writing(spark, family) -> None:
    """A null in a key column fails the query before anything is written; the error shows the key of the row."""
    family.create("publish")
    rows = spark.createDataFrame(
        [(number, None if number == 77 else "x") for number in range(100)], "id INT, side STRING"
    )
    with pytest.raises(
        ConfigurationError, match=r'^a row has no key, {"id":77,"side":null}: nothing was written; .*key\)$'
    ):
        publish_deltas(rows, family.name, key=["id", "side"], columns=[], options=family.options)
    assert family.read("publish") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"options": {}}, "no option 'kafka.bootstrap.servers'"),
        ({"columns": ["balanse"]}, "no column 'balanse'; did you mean 'balance'"),
        ({"columns": ["ID"]}, "no column 'ID'"),
        ({"columns": "balance"}, r"give a list of column names: columns=\['balance'\]"),
        ({"order_by": "balance"}, r"give a list of column names: order_by=\['balance'\]"),
        ({"order_by": ["attributes"]}, "order_by column 'attributes' is map<.*: no order"),
        ({"key": []}, "key names no columns"),
        ({"key": ["balance"]}, "key column 'balance' is double; .*: cast it"),
        ({"columns": ["twice"]}, "2 columns named 'twice'"),
        ({"nulls": "drop"}, "say 'keep' .* or 'skip'"),
        ({"mask": "changed"}, "columns and mask both say"),
        ({"columns": None, "mask": "balance"}, "mask column 'balance' is double; it is an array<string>"),
        ({"columns": None, "mask": "_sow.changed"}, "no column '_sow'"),
        ({"columns": None, "mask": "attributes.a"}, "no column 'attributes.a': 'attributes' is map<string,int>"),
        ({"columns": None, "mask": "changed", "nulls": "skip"}, "nulls='skip' cannot be given with a mask"),
        ({"removed": "balance"}, "removed column 'balance' is double"),
        ({"deleted": "balance"}, "deleted column 'balance' is double"),
        ({"batch_id": 1}, "give its name too"),
        ({"client": "c", "batch_id": 2**31}, "batch_id is 2147483648; it is 0 to 2147483647"),
        ({"client": "c" * 1000}, "client has 1000 bytes"),
        ({"writers": 0}, "writers is 0"),
        ({"config": {"key": ["/balance", "/id"]}}, r"key=\['id'\], but the topic's settings say \['/balance', '/id'\]"),
    ],
)
def test_wrong_arguments_are_refused(spark, family, arguments, said) -> None:
    """Each wrong argument is an error with its name and a remedy, before anything is written."""
    rows = spark.range(1).select(
        "id", F.lit(1.5).alias("balance"), F.lit(1).alias("twice"), F.lit(2).alias("twice"),
        F.array(F.lit("balance")).alias("changed"), F.create_map(F.lit("a"), F.lit(1)).alias("attributes"),
    )  # fmt: skip
    right = {"key": ["id"], "columns": ["balance"], "options": family.options}
    with pytest.raises(ConfigurationError, match=said):
        publish_deltas(rows, family.name, **(right | arguments))


def test_timestamps_keep_their_microseconds(spark) -> None:
    """A timestamp is published with microseconds, and with its zone if it has one."""
    rows = spark.sql(
        "SELECT 1 AS id, timestamp'2026-01-02 03:04:05.678901' AS at, timestamp_ntz'2026-01-02 03:04:05.000001' AS here"
    )
    assert bodies(rows, columns=["at", "here"]) == [
        {"id": 1, "at": "2026-01-02T03:04:05.678901Z", "here": "2026-01-02T03:04:05.000001"}
    ]


def test_full_records_and_deletes(spark, family) -> None:
    """`publish_records` writes publish with every column and its nulls; `delete_records` writes sow_delete."""
    family.create("publish")
    rows = spark.createDataFrame([("x", None, (None, 1), ["a"])], NULLS)
    publish_records(rows, family.name, key=["id"], options=family.options)
    publish_records(rows, family.name, key=["id"], columns=["a", "b"], options=family.options, nulls="skip")
    delete_records(rows, family.name, key=["id"], options=family.options)
    published = sorted(family.read("publish"), key=lambda m: m.offset())
    assert [(dict(m.headers())["command"], m.value()) for m in published] == [
        (b"publish", b'{"id":"x","a":null,"b":{"c":null,"d":1},"changed":["a"]}'),
        (b"publish", b'{"id":"x","b":{"d":1}}'),
        (b"sow_delete", None),
    ]


def test_deletes_and_removals_beside_deltas(spark) -> None:
    """A row with a true `deleted` is a delete only; `removed` lists the fields to remove."""
    rows = spark.createDataFrame(
        [("1", 5, ["/a", "b/c"], False), ("2", 5, [], None), ("3", 5, None, False), ("4", 5, ["/a"], True)],
        "id STRING, n INT, gone ARRAY<STRING>, dead BOOLEAN",
    )
    found = {key: (value, headers) for key, value, headers in sent(rows, columns=["n"], removed="gone", deleted="dead")}
    said = {
        key: {n: v for n, v in headers.items() if n in ("command", "remove")} for key, (_, headers) in found.items()
    }
    assert said == {
        "1": {"command": "delta_publish", "remove": '["/a","/b~1c"]'},
        "2": {"command": "delta_publish"},
        "3": {"command": "delta_publish"},
        "4": {"command": "sow_delete"},
    }
    assert {key: value for key, (value, _) in found.items() if key in "14"} == {"1": b'{"id":"1","n":5}', "4": None}


@pytest.mark.long
@pytest.mark.parametrize("function", [publish_deltas, publish_records])
def test_columns_about_a_record_are_not_published(spark, family, function) -> None:
    """Metadata is left out where all columns of a row are published: `_sow`, and flat columns under any name."""
    family.create("sow", "publish")
    with family.transaction("sow") as write:
        write("1", '{"id":1,"balance":5,"note":null}', version="1", kind="insert")
    from spark_integration import read_sow

    late = F.lit(True)
    flat = read_sow(spark, family.name, "id LONG, balance LONG", options=family.options, metadata="flat")
    flat = flat.withColumnRenamed("version", "was").withColumn("late", late)
    table = read_sow(spark, family.name, "id LONG, balance LONG", options=family.options).withColumn("late", late)
    # A struct of that name is metadata, with or without Spark's mark.
    rebuilt = table.withColumn("_sow", F.struct(F.col("_sow.version").alias("version")))
    for rows in (flat, table, rebuilt):
        function(rows, family.name, ["id"], options=family.options, nulls="skip")
    assert [m.value() for m in family.read("publish")] == [b'{"id":1,"balance":5,"late":true}'] * 3


def test_stream_is_published_as_a_stream(spark, family, tmp_path) -> None:
    """For a stream, `publish_deltas` returns the writer of a query, and each of its batches is published once."""
    family.create("delta", "publish")
    with family.transaction("delta") as write:
        write("1", '{"id":1,"balance":5}', version="1", kind="insert")
        write("2", '{"id":2,"balance":6}', version="1", kind="insert")
    from spark_integration import stream_deltas

    stream = stream_deltas(
        spark, family.name, "id LONG, balance LONG", options=family.options | {"startingOffsets": "earliest"}
    )
    writer = publish_deltas(stream, family.name, key=["id"], mask="_sow.changed", options=family.options)
    begun_ms = int(time.time() * 1000)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    published = family.read("publish")
    assert {m.key(): m.value() for m in published} == {b"1": b'{"id":1,"balance":5}', b"2": b'{"id":2,"balance":6}'}
    assert all(dict(m.headers())["client"].decode().startswith(f"spark/{query.id}/0/") for m in published)
    (planned,) = {planned_ms(message) for message in published}
    assert begun_ms <= planned <= time.time() * 1000


def test_stream_numbers_its_batches_itself(spark, family) -> None:
    """A batch number of the caller is refused for a stream, as it would be the same for every batch."""
    stream = spark.readStream.format("rate").load().withColumnRenamed("value", "id")
    with pytest.raises(ConfigurationError, match="a stream numbers its batches itself"):
        publish_deltas(stream, family.name, key=["id"], columns=[], options=family.options, client="c", batch_id=1)
