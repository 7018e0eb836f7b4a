"""`view_batch` computes the rows that the workers' stages write from the same records, byte for byte."""

from __future__ import annotations

import datetime as dt

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.config import Config
from processor.errors import ConfigurationError
from spark_integration import view_batch
from spark_integration.merge.arrow_records import HEADERS_DDL
from tests.builtin.view.chain import projection
from tests.builtin.view.histories import VIEW, History
from tests.builtin.view.join_chain import VIEW as JOIN
from tests.builtin.view.join_chain import BroadcastHistory, JoinHistory, SameKeyHistory

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

COLUMNS = f"key binary, value binary, headers {HEADERS_DDL}, partition int, offset bigint, timestamp timestamp"


def archive(spark, drivers):
    """The SOW records that drivers have read, one driver for each partition, as an archive of the topic has them."""
    rows = [
        (
            bytearray(record.key), None if record.value is None else bytearray(record.value),
            [(name, bytearray(value)) for name, value in record.headers or ()], partition, record.offset,
            dt.datetime.fromtimestamp(record.timestamp_ms / 1000, dt.UTC),
        )
        for partition, driver in enumerate(drivers)
        for record in driver.input
    ]  # fmt: skip
    return spark.createDataFrame(rows, COLUMNS)


def config(view) -> Config:
    """Settings with both topics, and a view over them."""
    topics = {"orders": {"partitions": 2, "key": ["/id"]}, "customers": {"partitions": 2, "key": ["/id"]}}
    return Config(topics=topics, views={"v": {"underlying": "orders", **view}})


def written(drivers) -> dict[bytes, bytes]:
    """The rows that the workers' last stage has, by key, as the bytes of their SOW records."""
    last = {record.key: record.value for driver in drivers for record in driver.read_output("sow")}
    return {key: value for key, value in last.items() if value is not None}


def computed(frame) -> dict[bytes, bytes]:
    """The rows of `view_batch`, by key."""
    rows = frame.collect()
    found = {bytes(row["key"]): bytes(row["value"]) for row in rows}
    assert len(found) == len(rows), "a key occurs twice"
    return found


def test_groups_are_those_of_the_workers(spark) -> None:
    """Every aggregate over random records, with deletes, filters and changes of the group."""
    history = History(3)
    for _ in range(20):
        assert not history.step()
    inputs = {"orders": archive(spark, history.chain.splits)}
    view = history.view
    rows = computed(view_batch(spark, "v", config=config(view), records=inputs))
    assert rows == written(history.chain.aggregates)
    assert len(rows) > 2
    assert rows != computed(view_batch(spark, "v", config=config(view | {"filter": "/state = 'paid'"}), records=inputs))


@pytest.mark.parametrize("kind", [JoinHistory, SameKeyHistory, BroadcastHistory])
def test_joins_are_those_of_the_workers(spark, kind) -> None:
    """Rows with and without partners, by other fields and by the key of both topics."""
    history = kind(4)
    for _ in range(15):
        assert not history.step()
    chain = history.chain
    inputs = {"orders": archive(spark, chain.left), "customers": archive(spark, chain.right)}
    assert kind.view.items() >= {key: JOIN[key] for key in ("underlying", "filter", "fields")}.items()
    rows = computed(view_batch(spark, "v", config=config(kind.view), records=inputs))
    assert rows == written(chain.last)
    assert any(b"name" in row for row in rows.values())


def test_projections_are_those_of_the_workers(spark) -> None:
    """One row per record that counts, numbers with every digit."""
    view = {"filter": "/qty > 0", "fields": {"/id": "/id", "/value": "/qty * /px"}}
    driver = projection(view)
    for number in range(30):
        driver.pipe_input(f"k{number % 7}", {"id": f"k{number % 7}", "qty": number % 5, "px": number / 10})
    driver.pipe_input("k1", None)
    driver.commit()
    rows = computed(view_batch(spark, "v", config=config(view), records={"orders": archive(spark, [driver])}))
    assert rows == written([driver])
    assert 0 < len(rows) < 7


def test_unknown_view_is_refused(spark) -> None:
    """The error names the views that there are."""
    with pytest.raises(ConfigurationError, match="w"):
        view_batch(spark, "w", config=config(VIEW))
