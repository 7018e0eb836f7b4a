"""Groups of equal values on a real broker: views by both ways, joins, subscribers and gets, also over the gateway."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from tests.builtin.view.equal_values import GROUPS, expected_rows, records
from tests.endtoend.world import World

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker

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
