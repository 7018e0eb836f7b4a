from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration import stream_deltas
from spark_integration.examples import change_rate, dashboard, late_joiner, latest_order_book, mirror
from spark_integration.tables.upsert import read_snapshot
from tests.spark.merged_family import Merged

pytestmark = [pytest.mark.spark, pytest.mark.broker]

EXAMPLES = sorted(Path(mirror.__file__).parent.glob("[a-z]*.py"))


DELETE = {"command": "sow_delete"}


@pytest.fixture
def orders(family):
    """The topics of a family, and the merge that fills them."""
    family.create("sow", "delta", "publish")
    return Merged(family)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(example) -> None:
    """An example fits on one page: it has at most 80 lines."""
    assert len(example.read_text().splitlines()) <= 80


@pytest.mark.long
def test_latest_order_book(spark, family, orders) -> None:
    """The order book sums the open quantity of working orders by price, the best price of each side first."""
    base = {"instrument": "X", "state": "working"}
    orders.merge(
        *(base | {"id": f"b{number}", "side": "buy", "price": 10 + number % 2, "open": 5} for number in range(4)),
        *(base | {"id": f"s{number}", "side": "sell", "price": 12.5 + number, "open": 7} for number in range(3)),
    )
    orders.merge(
        {"id": "b0", "open": 2}, {"id": "b1", "state": "filled"}, ({"id": "s0"}, DELETE), {"id": "s1", "open": 0}
    )
    book = latest_order_book.order_book(spark, family.name, family.options)
    assert [tuple(row) for row in book.collect()] == [
        ("X", "buy", Decimal(11), 1, 5),
        ("X", "buy", Decimal(10), 2, 7),
        ("X", "sell", Decimal("14.5"), 1, 7),
    ]


@pytest.mark.long
def test_change_rate(spark, family, orders, tmp_path) -> None:
    """The updates of each key are counted in the minute of their merge, and touches separately from changes."""
    orders.merge(
        {"id": "a", "n": 1}, {"id": "a", "n": 2}, {"id": "a", "n": 2}, {"id": "b", "n": 1}, ({"id": "b"}, DELETE)
    )
    deltas = stream_deltas(spark, family.name, options=family.options | {"startingOffsets": "earliest"})
    writer = change_rate.change_rate(deltas, every="1 day").writeStream.outputMode("complete").format("memory")
    writer = writer.queryName(f"{family.name}_rate").option("checkpointLocation", str(tmp_path / "state"))
    writer.trigger(availableNow=True).start().awaitTermination()
    rates = (
        spark.table(f"{family.name}_rate")
        .groupBy("sow_key")
        .agg(*(F.sum(name) for name in ("changes", "inserts", "deletes", "touches")))
    )
    assert sorted(tuple(row) for row in rates.collect()) == [("a", 2, 1, 0, 1), ("b", 2, 1, 1, 0)]


@pytest.mark.long
def test_late_joiner(spark, family, orders) -> None:
    """A snapshot with the deltas after it equals the later snapshot, and a missing delta is detected."""
    orders.merge({"id": "a", "n": 1, "to": {"zip": "1"}}, {"id": "b", "n": 1}, {"id": "c", "n": 1})
    known = late_joiner.deltas(spark, family.name, family.options)
    before = late_joiner.snapshot(spark, family.name, family.options)
    orders.merge(
        {"id": "a", "n": None, "to": {"city": "Oslo"}}, ({"id": "a", "n": 2}, {"remove": '["/to/zip"]'}),
        ({"id": "b"}, DELETE), {"id": "b", "m": 5}, ({"id": "c"}, DELETE), {"id": "d", "n": 9},
    )  # fmt: skip
    after = late_joiner.snapshot(spark, family.name, family.options)
    deltas = late_joiner.deltas(spark, family.name, family.options)
    for key, rows in deltas.items():
        del rows[: len(known[key])]
    assert sorted(after) == ["a", "b", "d"]
    assert after["a"] == (3, '{"id":"a","n":2,"to":{"city":"Oslo"}}')
    assert late_joiner.differing(before, after, deltas) == []
    deltas["a"].pop(1)
    assert late_joiner.differing(before, after, deltas) == ["a"]


@pytest.mark.long
def test_dashboard(spark, family, orders, tmp_path) -> None:
    """The table follows the topic over two runs, and the figures are those of the live records."""
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "state")
    orders.merge(
        *({"id": number, "customer": "ab"[number % 2], "state": "new", "balance": 10.5} for number in range(4))
    )
    dashboard.follow(spark, family.name, family.options, table, checkpoint)
    orders.merge({"id": 0, "state": "done"}, ({"id": 1}, DELETE), {"id": 2, "balance": 1})
    dashboard.follow(spark, family.name, family.options, table, checkpoint)
    figures = dashboard.figures(read_snapshot(spark, table)).drop("updated")
    assert [tuple(row) for row in figures.collect()] == [
        ("a", 2, 1, Decimal("11.50")),
        ("b", 1, 1, Decimal("10.50")),
    ]


@pytest.mark.long
def test_mirror(spark, family, orders, tmp_path) -> None:
    """The merge of the published copy equals the original topic: values, nulls, removals and deletes."""
    schema = "id STRING, n LONG, to STRUCT<zip: STRING, city: STRING>"
    copy = Merged(family, null_policy="set")
    orders.merge(
        {"id": "a", "n": 1, "to": {"zip": "1"}}, {"id": "a", "to": {"city": "Oslo"}}, {"id": "b", "n": 1},
        ({"id": "a", "n": None, "to": {"city": None}}, {"command": "publish"}), ({"id": "b"}, DELETE),
        {"id": "b", "to": {"zip": "2"}}, ({"id": "c", "n": 3}, {}), ({"id": "c"}, {"remove": '["/n"]'}),
    )  # fmt: skip
    deltas = stream_deltas(spark, family.name, schema, family.options | {"startingOffsets": "earliest"})
    writer = mirror.mirror(deltas, family.name, family.options).option("checkpointLocation", str(tmp_path / "state"))
    writer.trigger(availableNow=True).start().awaitTermination()
    for message in family.read("publish"):
        copy.driver.pipe_input(message.key(), message.value(), message.headers())
    copy.driver.commit()
    assert copy.latest() == orders.latest()
    assert copy.driver.read_output("dlq") == []


PROGRAMS = [
    ("latest_order_book", [], "|XYZ       |buy |10.500000|1     |5   |"),
    ("change_rate", ["--once", "--checkpoint", "{}/state"], "|1      |1      |0      |0      |"),
    ("late_joiner", ["--wait", "0"], ""),
    ("dashboard", ["--table", "{}/table", "--checkpoint", "{}/state"], "|ann     |1     |0      |3.50   |"),
    ("mirror", ["--once", "--checkpoint", "{}/state", "--copy", "{}", "--schema", "id STRING"], ""),
]
"""Each program, its arguments, and a line of its output."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "more_arguments", "line"), PROGRAMS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_example_runs_as_a_program(family, orders, bootstrap, tmp_path, program, more_arguments, line) -> None:
    """Each example, started with the command in its docstring, works on a broker and ends with status 0."""
    order = {"id": "1", "instrument": "XYZ", "side": "buy", "price": 10.5, "open": 5, "state": "working"}
    orders.merge({"id": "1"} if program == "mirror" else order | {"customer": "ann", "balance": 3.5})
    paths = [text.format(family.name if text == "{}" else tmp_path) for text in more_arguments]
    command = [sys.executable, "-m", f"spark_integration.examples.{program}", "--bootstrap", bootstrap]
    answer = subprocess.run(
        [*command, "--topic", family.name, *paths], capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    assert line in answer.stdout
    if program == "mirror":
        assert [m.value() for m in family.read("publish")] == [b'{"id":"1"}']
