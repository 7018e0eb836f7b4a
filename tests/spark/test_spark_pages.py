"""The code of the how-to pages on Spark runs as it stands on a page, and gives the results that the page describes."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import yaml

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration import read_sow
from spark_integration.cli.init import ORDERS, PIPELINE
from tests.docs.pages import blocks

SOURCE = "how-to/spark-kafka-source.md"
DECLARATIVE = "how-to/spark-declarative.md"
REFERENCE = "reference/spark.md"

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def programs(page: str, family) -> dict[str, str]:
    """The Python code of a page by its heading, with the test's broker and topics in place of the page's."""
    servers = family.options["kafka.bootstrap.servers"]
    return {
        block.section: block.text.replace("localhost:9092", servers)
        .replace('"orders.', f'"{family.name}.')
        .replace('"orders"', f'"{family.name}"')
        for block in blocks(page)
        if block.language == "python"
    }


def fill(family) -> None:
    """Write the records and deltas of four keys, some of them in a transaction that is rolled back."""
    family.create("sow", "delta", "publish")
    with family.transaction("sow") as write:
        write("1", '{"id":1,"customer":"Ann","balance":1}', version="1", kind="insert")
        write("2", '{"id":2,"customer":"Ben"}', version="1", kind="insert")
        write("3", '{"id":3}', version="1", kind="insert", expires_at="1000")
        write("4", '{"id":4,"customer":"Dan"}', version="1", kind="insert")
        write("4", None, version="2", kind="delete")
        write("4", '{"id":4,"balance":400}', version="1", kind="insert")
        write("2", None, version="2", kind="delete")
        write("1", '{"id":1,"customer":"Ann","balance":250}', version="2")
    with family.transaction("sow", abort=True) as write:
        write("1", '{"id":1,"balance":666}', version="3")
    with family.transaction("delta") as write:
        write("1", '{"id":1,"customer":"Ann","balance":1}', version="1", kind="insert")
        write("1", '{"id":1,"balance":null}', version="2")
        write("1", '{"id":1}', version="3", removed='["/balance"]')
        write("1", '{"id":1}', version="4", kind="delete")


def test_the_code_with_sparks_own_source(spark, family, tmp_path) -> None:
    """Only live records are read, changes have their fields and kinds, and a published delta has its command."""
    fill(family)
    parts = programs(SOURCE, family)
    assert list(parts) == ["Helpers", "The present record of each key", "What changed", "Publishing a delta"]
    names: dict = {"spark": spark}
    for text in parts.values():
        exec(text, names)
    assert sorted(tuple(row) for row in names["orders"].collect()) == [(1, "Ann", 250.0), (4, None, 400.0)]
    writer = names["changes"].writeStream.format("memory").queryName(f"{family.name}_changes")
    writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start().awaitTermination()
    rows = spark.table(f"{family.name}_changes").orderBy("version").collect()
    assert [(row.order_key, row.kind, row.fields, row.removed) for row in rows] == [
        ("1", "insert", ["id", "customer", "balance"], None),
        ("1", "update", ["id", "balance"], None),
        ("1", "update", ["id"], ["/balance"]),
        ("1", "delete", ["id"], None),
    ]
    sent = {message.key(): message for message in family.read("publish")}
    assert {key: json.loads(message.value()) for key, message in sent.items()} == {
        b"1": {"id": 1, "state": "late"},
        b"4": {"id": 4, "state": "late"},
    }
    assert all(message.headers() == [("command", b"delta_publish")] for message in sent.values())


def test_the_first_example_reads_the_orders_of_a_new_pipeline(spark, family) -> None:
    """The reference's first program has the columns that `init` writes; it reads and sums its orders, and cuts one."""
    family.create("sow", "delta", "publish")
    with family.transaction("sow") as write:
        for line in ORDERS.splitlines():
            write(str(json.loads(line)["id"]), line, version="1", kind="insert")
    names: dict = {}
    # A table before the oldest record is refused, and these are of this moment.
    exec(programs(REFERENCE, family)["Spark and the topics"].replace("timedelta(minutes=1)", "timedelta(0)"), names)
    jobs = yaml.safe_load(PIPELINE)["jobs"]
    assert names["schema"] == jobs["book"]["schema"] == jobs["depth"]["schemas"]["orders"]
    assert sorted(row.id for row in names["orders"].collect()) == [1, 3]
    assert names["before"].columns == [*json.loads(ORDERS.splitlines()[0]), "_sow"]
    assert [json.loads(message.value()) for message in family.read("publish")] == [{"id": 3, "qty": 4}]


@pytest.mark.long
def test_a_flow_of_auto_cdc_gives_the_sow_topic(spark, family, tmp_path, monkeypatch) -> None:
    """The last row of each key by `sequence_by`, without the deletes, is the table that `read_sow` gives."""
    fill(family)
    flows: list[dict] = []
    views = {}
    fake = SimpleNamespace(
        table=lambda function: views.setdefault(function.__name__, function),
        temporary_view=lambda function: views.setdefault(function.__name__, function),
        create_streaming_table=lambda name: name,
        create_auto_cdc_flow=lambda **arguments: flows.append(arguments),
    )
    module = ModuleType("pyspark.pipelines")
    module.__dict__.update(vars(fake))
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", module)
    monkeypatch.setattr("pyspark.pipelines", module, raising=False)
    names: dict = {"spark": spark}
    for text in programs(DECLARATIVE, family).values():
        exec(text, names)
    assert set(views) == {"order_changes", "order_records"}
    (flow,) = flows
    rows = views[flow["source"]]().select(
        F.col(flow["keys"][0]).alias("row_key"),
        flow["sequence_by"].alias("sequence"),
        flow["apply_as_deletes"].alias("is_delete"),
        F.struct("id", "customer", "balance").alias("record"),
    )
    writer = rows.writeStream.format("memory").queryName(f"{family.name}_records")
    writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start().awaitTermination()
    last = spark.table(f"{family.name}_records").groupBy("row_key")
    ends = last.agg(F.max_by(F.struct("is_delete", "record"), "sequence").alias("end"))
    kept = {row.row_key: tuple(row.end.record) for row in ends.collect() if not row.end.is_delete}
    # The record whose time is over is deleted from a table when a worker removes it.
    expired = kept.pop("3")
    assert expired == (3, None, None)
    table = read_sow(spark, family.name, "id LONG, customer STRING, balance DOUBLE", options=family.options)
    assert kept == {row["_sow"]["sow_key"]: (row.id, row.customer, row.balance) for row in table.collect()}
    assert len(kept) == 2
