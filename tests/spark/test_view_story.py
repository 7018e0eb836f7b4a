"""A view from end to end: a conflated topic over it, a subscription on that, and its table in Spark."""

from __future__ import annotations

import json

import pytest

from tests.waiting import PATIENCE_S

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.client import Client
from spark_integration import read_sow, register_source, view_batch
from tests.endtoend.views_world import ViewsWorld

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

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
