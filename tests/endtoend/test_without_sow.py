"""Tests of a topic without a SOW: messages are delivered as they were published, and no record is kept."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client, Message, Subscription
from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from tests.endtoend.world import World
from tests.forked import run
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker

COUNT = 4_000


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create an ordinary topic and one without a SOW, whose workers may run at least once."""
    ticks = {"sow": False, "partitions": 2}
    made = World(bootstrap, tmp_path, unique, others={f"{unique}_ticks": ticks}, more={"guarantee": "at_least_once"})
    yield made
    made.close()


def taken(subscription: Subscription, count: int) -> list[Message]:
    """Return the next messages."""
    subscription.timeout_s = PATIENCE_S
    found = []
    for message in subscription:
        found.append(message)
        if len(found) == count:
            return found
    raise AssertionError(f"only {len(found)} of {count} messages came")


def by_command(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return run(*arguments, "-c", str(world.file))


def test_messages_are_delivered_as_they_were_published_and_nothing_is_kept(world: World) -> None:
    """Full messages, also of deltas, are selected by filter and select list; the worker keeps no state."""
    name = world.names[1]
    world.start()
    with Client("desk", world.config) as client:
        everything = client.delta_subscribe(name, options="no_empties,timestamp")
        some = client.subscribe(name, "/qty > 5 AND SOW_KEY() <> '9'", select="-/note", sub_id="some")
        world.wait(lambda: "restored" in world.workers[0].log(), "the worker")
        client.publish(name, b'{"id":1, "qty": 7, "note": null}', "1", correlation_id="abc", headers={"trace": "t"})
        client.delta_publish(name, {"id": 1, "qty": 3})
        client.delta_publish(name, {"id": 9, "qty": 9})
        repeats = [client.delta_publish(name, {"id": 1, "qty": 8}, ack="processed", sequence=1) for _ in range(2)]
        deleted = [
            client.sow_delete(name, key, filter=text, ack="persisted,stats")
            for key, text in (("1", None), (None, "/qty > 0"))
        ]
        bad = client.publish(name, b"{", "1", ack="persisted")
        client.flush(PATIENCE_S)
        assert bad is not None
        assert str(bad.exception(0)).startswith("undecodable: ")
        assert [future.result(0).reason for future in repeats if future] == [None, "duplicate"]
        assert [future.result(0).records_deleted for future in deleted if future] == [0, 0]
        messages = taken(everything, 4)
        of_one = [message for message in messages if message.sow_key == "1"]
        assert [message.data for message in of_one] == [
            {"id": 1, "qty": 7, "note": None},
            {"id": 1, "qty": 3},
            {"id": 1, "qty": 8},
        ]
        assert {(message.command, message.delta, message.version) for message in messages} == {("publish", False, None)}
        assert (of_one[0].correlation_id, of_one[0].timestamp is None) == ("abc", False)
        found = taken(some, 2)
        assert [message.data for message in found] == [{"id": 1, "qty": 7}, {"id": 1, "qty": 8}]
        replayed = taken(client.subscribe(name, bookmark="epoch"), 4)
        assert sorted(message.to_json() for message in replayed if message.sow_key == "9")
        _refusals(client, name)
    assert f"{name}.sow" not in Admin(world.config.kafka).cluster().topics
    state = world.config.state_dir / world.config.application_id
    assert sorted(path.name for path in state.iterdir()) == [world.name]
    shown = by_command(world, "subscribe", name, "--bookmark", "epoch", "--count", "4", "--timeout", "120")
    assert sorted(json.loads(line)["data"]["qty"] for line in shown.stdout.splitlines()) == [3, 7, 8, 9]
    for refused in (["sow", name], ["get", name, "1"], ["subscribe", name, "--sow"], ["subscribe", name, "--oof"]):
        done = by_command(world, *refused)
        assert (done.returncode, done.stdout) == (2, "")
        assert "keeps no records (sow: false)" in done.stderr
    assert by_command(world, "topics", "check").returncode == 0


def _refusals(client: Client, name: str) -> None:
    """Calls that need records are refused."""
    calls: list[Any] = [
        lambda: client.sow(name),
        lambda: client.sow_and_subscribe(name),
        lambda: client.sow_and_delta_subscribe(name),
        lambda: client.view(name),
        lambda: client.get(name, "1"),
        lambda: client.subscribe(name, options="oof"),
        lambda: client.subscribe(name, order_by="/qty", top_n=3),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"keeps no records \(sow: false\)"):
            call()


@pytest.mark.long
def test_every_message_comes_once_though_workers_are_killed(world: World) -> None:
    """Messages arrive once and in the order of each key, under each guarantee."""
    name = world.names[1]
    victim = world.start(name=name)
    with Client("desk", world.config) as client:
        for number in range(COUNT):
            client.delta_publish(name, {"id": number % 50, "n": number})
            if number == COUNT // 2:
                client.flush(PATIENCE_S)
                world.wait(lambda: len(world.read("delta", name)) > 0, "the first of them")
                victim.kill()
                world.start(name=name)
    world.wait(lambda: len(world.read("delta", name)) >= COUNT, "delivering all of them")
    records = world.read("delta", name)
    assert len(records) == COUNT
    by_key: dict[bytes | None, list[int]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(json.loads(record.value or b"")["n"])
    for numbers in by_key.values():
        assert numbers == sorted(numbers)
    assert sorted(number for numbers in by_key.values() for number in numbers) == list(range(COUNT))
