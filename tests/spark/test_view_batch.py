"""Views computed by Spark: of the stages of a worker, and from end to end."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from tests.waiting import PATIENCE_S

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.client import Client
from processor.config import Config
from processor.errors import ConfigurationError
from spark_integration import read_sow, register_source, view_batch
from spark_integration.foundation.arrow_records import HEADERS_DDL
from tests.builtin.view import equal_values
from tests.builtin.view.chain import AggregateChain, projection
from tests.builtin.view.histories import VIEW, History
from tests.builtin.view.join_chain import SAME_KEY_VIEW, BroadcastHistory, JoinChain, JoinHistory, SameKeyHistory
from tests.builtin.view.join_chain import VIEW as JOIN
from tests.endtoend.views_world import ViewsWorld

pytestmark = pytest.mark.spark

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
    history = kind(7)
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


def test_equal_values_are_one_group_and_meet_as_in_the_workers(spark) -> None:
    """Groups and join keys of all kinds of values have the rows of the workers, under the same keys."""
    chain = AggregateChain({"group_by": ["/g"], "fields": {"/n": "COUNT(*)"}}, inputs=2, partitions=2)
    join = JoinChain(JOIN | {"filter": "TRUE", "join": [{"topic": "customers", "on": {"/g": "/g"}}]})
    for key, value in equal_values.records(2):
        for drivers in (chain.splits, join.left):
            drivers[int(key[1:]) % 2].append_input(key.encode(), value, [("version", b"1")])
    for number, (_, members) in enumerate(equal_values.GROUPS.values()):
        value = equal_values.as_written(f'{{"id":"p{number}","g":{members[-1]},"name":"{number}","bonus":0}}')
        join.right[number % 2].append_input(f"p{number}".encode(), value, [("version", b"1")])
    for each in (chain, join, join):
        each.run()
    view = {"group_by": ["/g"], "fields": {"/n": "COUNT(*)"}}
    groups = computed(view_batch(spark, "v", config=config(view), records={"orders": archive(spark, chain.splits)}))
    assert groups == written(chain.aggregates)
    assert len(groups) == len(equal_values.GROUPS)
    inputs = {"orders": archive(spark, join.left), "customers": archive(spark, join.right)}
    rows = computed(view_batch(spark, "v", config=config(join.settings.model_dump(exclude_unset=True)), records=inputs))
    assert rows == written(join.last)
    assert sum(b"name" in row for row in rows.values()) > len(equal_values.GROUPS)


def test_records_that_meet_by_their_keys_do_so_in_spark(spark) -> None:
    """A join by the key of both topics compares SOW keys, of which those of 1 and "1" are one."""
    chain = JoinChain(SAME_KEY_VIEW | {"as_of": False})
    chain.put("left", 0, "1", {"id": 1, "qty": 1, "state": "new"})
    chain.put("right", 0, "1", {"id": "1", "name": "Ann", "bonus": 1})
    chain.run()
    inputs = {"orders": archive(spark, chain.left), "customers": archive(spark, chain.right)}
    rows = computed(view_batch(spark, "v", config=config(SAME_KEY_VIEW), records=inputs))
    assert rows == written(chain.last) == {b"1": b'{"id":1,"qty":1,"name":"Ann","both":2}'}


ORDER = {"customer": "ann", "qty": 2, "px": 5, "state": "new"}


@pytest.fixture
def views(bootstrap, tmp_path, unique):
    """A topic with views, their workers, and a conflated copy of one."""
    world = ViewsWorld(bootstrap, tmp_path, unique)
    world.start()
    world.start("view", list(world.config.views))
    world.start("conflate", world.copy)
    yield world
    world.close()


@pytest.mark.broker
@pytest.mark.long
def test_subscriber_and_spark_have_the_rows_of_a_conflated_view(spark, views) -> None:
    """Snapshot, delta and oof of a conflated topic over a view, and Spark's table of it, follow the orders."""
    orders = {"1": ORDER, "2": ORDER | {"qty": 4}, "3": ORDER | {"customer": "bob"}}
    views.publish([(key.encode(), {"id": key, **order}, {}) for key, order in orders.items()])
    views.wait(lambda: {key: row["orders"] for key, row in views.last(views.copy).items()} == {"ann": 2, "bob": 1}, "")
    patience_s = PATIENCE_S
    with Client("desk", views.config) as client:
        messages = client.sow_and_delta_subscribe(views.copy, "/qty < 10", options="oof", timeout_s=patience_s)
        begin, first, second, end = [next(messages) for _ in range(4)]
        assert (begin.command, end.command) == ("group_begin", "group_end")
        assert {row.sow_key: row.data["qty"] for row in (first, second)} == {"ann": 6, "bob": 2}
        views.publish([(b"2", {"qty": 5}, {"command": "delta_publish"})])
        changed = next(messages)
        assert (changed.command, changed.delta, changed.data) == ("publish", True, {"customer": "ann", "qty": 7})
        views.publish([(b"3", {"qty": 30}, {"command": "delta_publish"})])
        left = next(messages)
        assert (left.command, left.sow_key, left.reason, left.data["qty"]) == ("oof", "bob", "match", 30)
        messages.close()
    options = {"kafka.bootstrap.servers": views.bootstrap}
    register_source(spark)
    schema = "customer STRING, orders LONG, qty LONG"
    table = spark.read.format("sow").options(topic=views.copy, schema=schema, **options).load()
    assert {row["customer"]: (row["orders"], row["qty"]) for row in table.collect()} == {"ann": (2, 7), "bob": (1, 30)}
    same = read_sow(spark, views.copy, schema, options=options)
    assert sorted(table.drop("_sow").collect()) == sorted(same.drop("_sow").collect())
    computed = view_batch(spark, views.positions, config=views.config, options=options).collect()
    written = {record.key: record.value for record in views.read("sow", views.copy)}
    assert {bytes(row["key"]): bytes(row["value"]) for row in computed} == written
    assert all(json.loads(value) for value in written.values())
