"""Tests of deletes by key, keys, data and filter, with a worker and a broker."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from processor.client import Ack, Client
from processor.errors import ConfigurationError, FilterError, PublishRejected
from processor.kafka.admin.admin import Admin
from tests.endtoend.oracle import last_per_key, replay
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

from tests.endtoend.world import World
from tests.forked import run

pytestmark = pytest.mark.broker

COUNT = 80_000


def answer(future: Future[Ack] | None) -> Ack:
    """Return the last ack of a command."""
    assert future is not None
    return future.result(PATIENCE_S)


def deleted(future: Future[Ack] | None) -> int | None:
    """Return the number of records that a command deleted."""
    return answer(future).records_deleted


def orders(numbers: range, state: str) -> list[tuple[bytes | None, object, dict[str, str]]]:
    """Build deltas of orders."""
    return [(b"%d" % number, {"id": number, "state": state}, {}) for number in numbers]


def by_command(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `sowstream delete` to its end."""
    return run("delete", world.name, *arguments, "-c", str(world.file))


def test_each_way_to_delete_reports_the_number_of_records(world: World) -> None:
    """Deletes by key, keys, data and filter, from Python and the command line, leave all other records."""
    world.start()
    world.publish(orders(range(40), "new"))
    world.publish(orders(range(20, 30), "done"))
    told: list[Ack] = []
    with Client("desk", world.config) as client:
        assert deleted(client.sow_delete(world.name, "1", ack="stats")) == 1
        assert deleted(client.sow_delete(world.name, "1", ack="persisted,stats")) == 0
        assert deleted(client.sow_delete(world.name, keys=["2", "3", "3", "nobody"], ack="stats")) == 2
        assert deleted(client.sow_delete(world.name, keys=[], ack="stats")) == 0
        assert deleted(client.sow_delete(world.name, data={"id": 4, "state": "old"}, ack="stats")) == 1
        future = client.sow_delete(world.name, filter="/state = 'done'", ack="processed,stats", on_ack=told.append)
        assert answer(future) == Ack("success", None, "stats", world.name, None, answer(future).client, None, None, 10)
        assert sorted(ack.ack_type for ack in told) == ["processed"] * 4 + ["stats"] * 4
        numbered = [client.sow_delete(world.name, filter="/id = 5", ack="stats", sequence=1) for _ in range(2)]
        assert [deleted(future) for future in numbered] == [1, 0]
        client.sow_delete(world.name, filter="/id = 6")
        assert deleted(client.sow_delete(world.name, filter="/id = 6", ack="stats")) == 0
        assert answer(client.sow_delete(world.name, "7", ack="persisted")).records_deleted is None
        rejected = client.sow_delete(world.name, filter="LAST_UPDATED() > 0", ack="stats")
        assert rejected is not None
        with pytest.raises(PublishRejected, match=r"a worker's state does not have when it last changed"):
            rejected.result(PATIENCE_S)
        _refusals(client, world.name)
    one, more, none = (
        by_command(world, *arguments)
        for arguments in (("--data", '{"id": 8}'), ("--key", "9", "--key", "10"), ("--filter", "/id < 8 AND /id > 0"))
    )
    assert [done.returncode for done in (one, more, none)] == [0, 0, 0], one.stderr + more.stderr + none.stderr
    assert f"1 record deleted from {world.name}." in one.stderr
    assert f"2 records deleted from {world.name}." in more.stderr
    assert f"0 records deleted from {world.name}." in none.stderr
    left = last_per_key(world.read("sow"))
    assert left == {str(number): {"id": number, "state": "new"} for number in (0, *range(11, 20), *range(30, 40))}
    assert replay(world.read("delta")) == left
    copies = [record for record in world.read("publish") if "filter" in record.headers]
    assert all(record.key is None and record.value is None for record in copies)


def _refusals(client: Client, topic: str) -> None:
    """Contradictory arguments are refused at the call, and no command is sent."""
    for arguments in ({}, {"key": "1", "filter": "/a = 1"}, {"keys": ["1"], "data": {"id": 1}}):
        with pytest.raises(ConfigurationError, match="exactly one of key, keys, data and filter"):
            client.sow_delete(topic, **arguments)
    with pytest.raises(ConfigurationError, match="it is a list of keys"):
        client.sow_delete(topic, keys="12")
    with pytest.raises(ConfigurationError, match="delete keys one at a time"):
        client.sow_delete(topic, keys=["1", "2"], sequence=4)
    with pytest.raises(FilterError, match="line 1, column 6"):
        client.sow_delete(topic, filter="/a > > 1")
    with pytest.raises(ConfigurationError, match="'stats' is not supported but for sow_delete"):
        client.publish(topic, {"id": 1}, ack="stats")


@pytest.fixture(params=["exactly_once", "at_least_once"])
def large(bootstrap: str, tmp_path: Path, unique: str, request: pytest.FixtureRequest) -> Iterator[World]:
    """Create a topic of two partitions, under each guarantee."""
    made = World(bootstrap, tmp_path, unique, more={"guarantee": request.param}, partitions=2)
    yield made
    made.close()


@pytest.mark.long
def test_a_worker_killed_in_the_middle_leaves_the_rest_to_its_successor(large: World) -> None:
    """Every match is deleted and counted once; later records are merged after the command."""
    world = large
    loader = world.start()
    world.publish(orders(range(COUNT), "done") + orders(range(0, COUNT, 8), "new"))
    world.settle()
    assert loader.stop() == 0, loader.log()
    begin = _end(world)
    with Client("desk", world.config) as client:
        future = client.sow_delete(world.name, filter="/state = 'done'", ack="stats")
        client._sender().deliver(PATIENCE_S)
        world.publish(orders(range(0, COUNT, 5), "done"))
        victim = world.start(crash=("after apply", 2))
        victim.process.wait(PATIENCE_S)
        victim.kill()
        assert begin < _end(world) < begin + COUNT - COUNT // 8, "it did not end in the middle"
        assert future is not None
        assert not future.done()
        world.start()
        assert deleted(future) == COUNT - COUNT // 8
    world.settle()
    kept = dict.fromkeys(range(0, COUNT, 8), "new") | dict.fromkeys(range(0, COUNT, 5), "done")
    records = world.read("sow")
    assert last_per_key(records) == {str(number): {"id": number, "state": kept[number]} for number in kept}
    if world.config.guarantee == "exactly_once":
        tombstones = [record for record in records if record.value is None]
        assert len(tombstones) == COUNT - COUNT // 8
        assert replay(world.read("delta")) == last_per_key(records)
    assert world.read("dlq") == []
    answers = [json.loads(record.value or b"") for record in world.read("ack")]
    assert {ack["status"] for ack in answers} == {"success"}


def _end(world: World) -> int:
    """Return the sum of the SOW topic's end offsets."""
    return sum(Admin(world.config.kafka).end_offsets(f"{world.name}.sow", range(2)).values())
