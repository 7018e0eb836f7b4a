"""Views on a real broker: equal to their definition, through kills of the processes that compute them."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.client import Client
from processor.errors import Stop
from processor.kafka.admin.topic_changes import TopicChanges
from processor.repair.view_rebuild import ViewRebuild
from tests.builtin.view.equal_values import GROUPS, expected_rows, records
from tests.endtoend.views_world import ViewsWorld
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.broker


@pytest.fixture
def views(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[ViewsWorld]:
    """A topic with views."""
    world = ViewsWorld(bootstrap, tmp_path, unique)
    yield world
    world.close()


@pytest.mark.long
def test_views_follow_their_topic_through_a_kill_and_a_wiped_disk(views: ViewsWorld) -> None:
    """The rows of a view, of one over it and of a conflated copy equal the definition; deltas add up, without gaps."""
    views.orders(1, 400)
    views.start()
    views.start("conflate", views.copy)
    viewer = views.start("view", list(views.config.views))
    views.settle()
    views.wait(views.settled(), "building the views")
    views.orders(2, 400)
    viewer.kill()
    shutil.rmtree(views.config.state_dir / views.config.group_prefix / views.positions)
    shutil.rmtree(views.config.state_dir / views.config.group_prefix / f"{views.positions}.parts.table")
    views.orders(3, 100)
    viewer = views.start("view", list(views.config.views))
    views.settle()
    views.wait(views.settled(), "following the topic")
    for name in views.config.views:
        assert not (violation := views.law(name)), violation
    assert viewer.stop() == 0, viewer.log()


@pytest.mark.long
def test_joined_rows_follow_both_topics(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Rows of a left outer join follow changes of either side, also while the processes of the view are killed."""
    people, named, notes = f"{unique}_people", f"{unique}_named", f"{unique}_notes"
    view: dict[str, Any] = {
        "underlying": unique,
        "join": [{"topic": people, "on": {"/customer": "/id"}}],
        "fields": {"/id": "/id", "/qty": "/qty", "/name": f"[{people}]./name"},
    }
    by_key = view | {"join": [{"topic": people, "on": {"/id": "/id"}}]}  # Some orders have the id of a person.
    world = World(
        bootstrap, tmp_path, unique, others={people: {"partitions": 3}},
        sections={"views": {named: view, notes: by_key}},
        partitions=2, runtime={"session_timeout_s": 6, "transaction_timeout_s": 20},
    )  # fmt: skip
    try:
        rng = random.Random(3)
        world.start()
        viewer = world.start("view", [named, notes])
        for turn in range(3):
            orders: list[tuple[bytes | None, Any, dict[str, str]]] = [
                (key.encode(), {"id": key, "customer": rng.choice("abcd"), "qty": turn}, {})
                for key in ("a", "b", "d", *(f"o{number}" for number in rng.sample(range(50), 30)))
            ]
            persons: list[tuple[bytes | None, Any, dict[str, str]]] = [
                (key.encode(), None if rng.random() < 0.3 else {"id": key, "name": f"{key}{turn}"}, {}) for key in "abc"
            ]
            world.publish(orders)
            world.publish(persons, name=people)
            if turn == 1:
                viewer.kill()
                viewer = world.start("view", [named, notes])
            world.settle()
            world.wait(lambda: last_rows(world, named) == joined(world, people), f"joining in turn {turn}")
            world.wait(lambda: last_rows(world, notes) == joined(world, people, "id"), f"joining keys in turn {turn}")
        assert (world.config.views[named].join_method, world.config.views[notes].join_method) == (
            "repartition", "same_key",
        )  # fmt: skip
        assert viewer.stop() == 0, viewer.log()
    finally:
        world.close()


def joined(world: World, people: str, field: str = "customer") -> dict[str, Any]:
    """The rows of the join, by the records of both SOW topics."""
    names = {key: person["name"] for key, person in last_rows(world, people).items()}
    return {
        key: {"id": key, "qty": order["qty"]} | ({"name": names[order[field]]} if order[field] in names else {})
        for key, order in last_rows(world, world.name).items()
    }


def last_rows(world: World, name: str) -> dict[str, Any]:
    """The records of a SOW topic by key."""
    values = {record.key: record.value for record in world.read("sow", name)}
    return {(key or b"").decode(): json.loads(value) for key, value in values.items() if value is not None}


@pytest.mark.long
def test_view_rebuild_gives_the_rows_of_a_changed_definition(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """A worker refuses a changed definition; after a rebuild the rows are those of the new one, and deltas add up."""
    name = f"{unique}_counts"
    view = {"underlying": unique, "group_by": ["/customer"], "fields": {"/n": "COUNT(*)"}}
    runtime = {"session_timeout_s": 6, "transaction_timeout_s": 20}
    world = World(bootstrap, tmp_path, unique, sections={"views": {name: view}}, partitions=1, runtime=runtime)
    try:
        orders = [(f"o{n}".encode(), {"id": f"o{n}", "customer": "ab"[n % 2], "qty": n}, {}) for n in range(20)]
        world.publish(orders)
        world.start()
        viewer = world.start("view", name)
        world.wait(lambda: last_rows(world, name) == {key: {"customer": key, "n": 10} for key in "ab"}, "counting")
        assert viewer.stop() == 0, viewer.log()

        view["fields"] = {"/total": "SUM(/qty)"}
        tree = yaml.safe_load(world.file.read_text())
        world.file.write_text(yaml.safe_dump(tree | {"views": {name: view}}))
        refused = world.start("view", name)
        refused.is_expected_to_end = True
        assert refused.process.wait(300) == 2
        assert "its definition has changed" in refused.log()
        assert refused.log().count("pipeline failed") == len(("split", "rows")), "each stage once"
        rebuild = world.start("view", ["rebuild", name, "--yes"])
        rebuild.is_expected_to_end = True
        assert rebuild.process.wait(300) == 0, rebuild.log()
        world.start("view", name)
        expected = {"a": {"customer": "a", "total": 90}, "b": {"customer": "b", "total": 100}}
        world.wait(lambda: last_rows(world, name) == expected, "rebuilding")
        held: dict[str, Any] = {}
        for seen in world.read("delta", name):
            row = held.setdefault((seen.key or b"").decode(), {})
            row.update(json.loads(seen.value or b""))
            for pointer in json.loads(seen.headers.get("removed", "[]")):
                del row[pointer[1:]]
            if seen.headers.get("kind") == "delete":
                del held[(seen.key or b"").decode()]
        assert held == expected
    finally:
        world.close()


@pytest.mark.long
def test_versions_go_on_where_a_rebuild_was_repeated(
    bootstrap: str, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was deleted, of which no record is left, comes back above its former versions."""
    name = f"{unique}_counts"
    view = {"underlying": unique, "group_by": ["/customer"], "fields": {"/n": "COUNT(*)"}}
    runtime = {"session_timeout_s": 6, "transaction_timeout_s": 20}
    world = World(bootstrap, tmp_path, unique, sections={"views": {name: view}}, partitions=1, runtime=runtime)
    try:
        world.start()
        viewer = world.start("view", name)
        for number in range(5):
            world.publish([(b"%d" % number, {"id": f"{number}", "customer": "a"}, {})])
            world.wait(lambda count=number + 1: last_rows(world, name).get("a", {}).get("n") == count, "a row")
        world.publish([(b"%d" % number, None, {}) for number in range(5)])
        world.wait(lambda: not last_rows(world, name), "its end")
        assert viewer.stop() == 0, viewer.log()
        former = max(int(record.headers["version"]) for record in world.read("sow", name))
        # As compaction removes the tombstone some day.
        changes, admin = TopicChanges(world.config.kafka), AdminClient({"bootstrap.servers": bootstrap})
        changes.set_config(f"{name}.sow", {"cleanup.policy": "compact,delete"})
        for future in admin.delete_records([TopicPartition(f"{name}.sow", 0, OFFSET_END)]).values():
            future.result(PATIENCE_S)
        changes.set_config(f"{name}.sow", {"cleanup.policy": "compact"})

        await_gone = ViewRebuild._await_gone

        def await_and_die(rebuild: ViewRebuild, names: list[str]) -> None:
            await_gone(rebuild, names)
            raise Stop("killed")

        with monkeypatch.context() as interrupted:
            interrupted.setattr(ViewRebuild, "_await_gone", await_and_die)
            with pytest.raises(Stop, match="killed"):
                ViewRebuild(world.config, name).run()
        ViewRebuild(world.config, name).run()
        world.start("view", name)
        world.publish([(b"7", {"id": "7", "customer": "a"}, {})])
        world.wait(lambda: last_rows(world, name) == {"a": {"customer": "a", "n": 1}}, "the row")
        assert int(world.read("sow", name)[-1].headers["version"]) > former
    finally:
        world.close()


@pytest.mark.long
def test_view_goes_on_as_it_was_built(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Without `partial_aggregation` a view goes on with the parts that it was built of, and a new one combines."""
    single, combined, new = f"{unique}_single", f"{unique}_combined", f"{unique}_new"
    fields = {"/n": "COUNT(*)", "/low": "MIN(/qty)"}  # MIN did not combine in earlier versions.
    definition = {"underlying": unique, "group_by": ["/customer"], "fields": fields}
    views = {
        single: definition | {"partial_aggregation": False},
        combined: definition | {"filter": "/qty >= 0", "partial_aggregation": True},
        new: definition,
    }
    runtime = {"session_timeout_s": 6, "transaction_timeout_s": 20}
    world = World(bootstrap, tmp_path, unique, sections={"views": views}, partitions=1, runtime=runtime)

    def publish_orders(first: int) -> None:
        numbers = range(first, first + 20)
        world.publish([(f"o{n}".encode(), {"id": f"o{n}", "customer": "ab"[n % 2], "qty": n}, {}) for n in numbers])

    def await_rows(count: int) -> None:
        rows = {key: {"customer": key, "n": count, "low": "ab".index(key)} for key in "ab"}
        for name in views:
            world.wait(lambda name=name: last_rows(world, name) == rows, f"rows of {name}")  # type: ignore[misc]

    def parts() -> list[int]:
        return [len({record.key for record in world.read("parts", name)}) for name in views]

    try:
        publish_orders(0)
        world.start()
        viewer = world.start("view", [*views])
        await_rows(10)
        assert parts() == [20, 2, 2]
        viewer.kill()
        tree = yaml.safe_load(world.file.read_text())
        for view in tree["views"].values():
            view.pop("partial_aggregation", None)
        world.file.write_text(yaml.safe_dump(tree))
        viewer = world.start("view", [*views], state_dir=tmp_path / "other")
        publish_orders(20)
        await_rows(20)
        assert parts() == [40, 2, 2]
        assert viewer.file.read_text().count("as it was built") >= len(views)
    finally:
        world.close()


def test_subscriber_of_a_conflated_view_gets_deltas_and_departures(views: ViewsWorld) -> None:
    """A delta subscription with oof on a conflated topic over a view: snapshot, changed fields, and rows that leave."""
    views.start()
    views.start("conflate", views.copy)
    views.start("view", list(views.config.views))
    order = {"id": "1", "customer": "ann", "qty": 2, "px": 5, "state": "new"}
    views.publish([(b"1", order, {})])
    views.wait(lambda: views.last(views.copy).get("ann", {}).get("orders") == 1, "the first row")
    with Client("desk", views.config) as client:
        messages = client.sow_and_delta_subscribe(views.copy, "/qty < 10", options="oof", timeout_s=PATIENCE_S)
        first = [next(messages) for _ in range(3)]
        assert [message.command for message in first] == ["group_begin", "sow", "group_end"]
        views.publish([(b"2", {**order, "id": "2", "qty": 3}, {})])
        changed = next(messages)
        assert (changed.command, changed.delta) == ("publish", True)
        assert changed.data == {"customer": "ann", "orders": 2, "qty": 5}
        views.publish([(b"2", {"qty": 30}, {})])
        left = next(messages)
        assert (left.command, left.reason, left.data["qty"]) == ("oof", "match", 32)
        messages.close()


SEED = 5


def rows(world: World, name: str) -> dict[str, str]:
    """The rows of a view by key, as the bytes of its SOW topic; a space at the end marks numbers of many digits."""
    last = {record.key: record.value for record in world.read("sow", name)}
    return {(key or b"").decode(): value.decode().rstrip(" ") for key, value in last.items() if value is not None}


@pytest.mark.skipif(not importlib.util.find_spec("uvicorn"), reason="pip install 'sowstream[gateway]'")
def test_groups_are_equal_everywhere(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Both kinds of views write the same rows, joins meet by the same keys, and readers find a row by its value."""
    from tests.gateway.running import RunningGateway

    split, partial, named, people = f"{unique}_split", f"{unique}_partial", f"{unique}_named", f"{unique}_people"
    groups: dict[str, Any] = {"underlying": unique, "group_by": ["/g"], "fields": {"/n": "COUNT(*)"}}
    join = {
        "underlying": unique,
        "join": [{"topic": people, "on": {"/g": "/g"}}],
        "fields": {"/id": "/id", "/name": f"[{people}]./name"},
    }
    views = {
        split: groups | {"partial_aggregation": False},
        partial: groups | {"partial_aggregation": True},
        named: join,
    }
    world = World(
        bootstrap, tmp_path, unique, others={people: {"key": ["/id"], "partitions": 2}},
        sections={"views": views}, partitions=2, runtime={"session_timeout_s": 6, "transaction_timeout_s": 20},
    )  # fmt: skip
    gateway = None
    try:
        full = {"command": "publish"}
        last = dict(records(SEED))
        world.publish([(key.encode(), value, full) for key, value in records(SEED)])
        persons = [
            (key.encode(), f'{{"id":"{key}","name":"{key}","g":{members[-1]}}}'.encode(), full)
            for key, members in ((f"p{number}", members) for number, (_, members) in enumerate(GROUPS.values()))
        ]
        world.publish(persons, name=people)
        world.start()
        viewer = world.start("view", list(views))
        world.settle()
        world.wait(lambda: rows(world, split) == expected_rows(), "grouping")
        world.wait(lambda: rows(world, partial) == expected_rows(), "grouping by parts")
        world.wait(lambda: len(rows(world, named)) == len(last), "joining")
        assert viewer.stop() == 0, viewer.log()
        of_null = [*GROUPS].index("")
        names = {f"p{number}": 2 * len(members) for number, (_, members) in enumerate(GROUPS.values())}
        joined = [row for row in rows(world, named).values() if '"name"' in row]
        assert {name: sum(f'"name":"{name}"' in row for row in joined) for name in names} == names | {f"p{of_null}": 0}

        gateway = RunningGateway(world.config, topics=[unique, split])
        with Client("kafka", world.config) as on_kafka, Client("web", gateway=f"http://{gateway.address}") as over:
            for client in (on_kafka, over):
                subscribed = {
                    message.sow_key: message.data["n"]
                    for message in client.sow(unique, options="projection=[COUNT(*) AS /n],grouping=[/g]")
                    if message.command == "sow"
                }
                assert subscribed == {key: 2 * len(members) for key, (_, members) in GROUPS.items()}
                asked: list[tuple[Any, Any]] = [
                    (1, 1), ("1", 1), (1.0, 1), ("1.0", 1), (True, 1), ("true", 1), ({"g": "1"}, "1"), ('"1"', "1"),
                    ({"g": "true"}, "true"), ('"true"', "true"), ("tea", "tea"), (0.1, 0.1), (-0.0, 0), (None, None),
                ]  # fmt: skip
                found = [None if (row := client.get(split, key)) is None else (row.data or {})["g"] for key, _ in asked]
                assert found == [value for _, value in asked]
                assert client.get(split, "nobody") is None
        for path, value in (("1.0", b'"g":1,'), ("true", b'"g":1,'), ("%22true%22", b'"g":"true",')):
            status, _, body = gateway.get(f"/v1/topics/{split}/records/{path}")
            assert (status, value in body) == (200, True), body
    finally:
        if gateway is not None:
            gateway.stop()
        world.close()
