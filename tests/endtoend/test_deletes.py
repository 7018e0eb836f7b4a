"""Deletes by key, keys, data and filter; a costly or hanging filter stops its own partition at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from processor.client import Ack, Client
from processor.errors import ConfigurationError, FilterError, PublishRejected
from processor.kafka.admin.admin import Admin
from processor.topics.family import control_spec
from tests.endtoend.oracle import last_per_key, replay
from tests.endtoend.world import World
from tests.forked import run
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path


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


GROWING = "'yy'"
for _ in range(6):
    GROWING = f"REPLACE({GROWING}, 'y', '{'y' * 100}')"
COSTLY = f"LENGTH(UPPER(REVERSE({GROWING}))) < 0 OR /id = 1"
"""A filter that would make texts of millions of characters for each record."""

KEYS = [b"%d" % number for number in range(40)]

HANGING = '''
import time


def hang(value):
    """Never return."""
    while value is not None:
        time.sleep(0.01)
'''


@pytest.fixture
def plugged(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[tuple[World, dict[str, str]]]:
    """Create two topics, and a filter function HANG in the environment of their workers."""
    site = tmp_path / "site"
    info = site / "hanging-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "hanging.py").write_text(HANGING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sowstream.functions]\nhang = hanging:hang\n")
    runtime = {"session_timeout_s": 6, "transaction_timeout_s": 3}
    world = World(
        bootstrap, tmp_path, unique, runtime=runtime, others={f"{unique}_b": {"key": ["/id"], "partitions": 2}}
    )
    Admin(world.config.kafka).create([control_spec()])
    yield world, {"PYTHONPATH": str(site)}
    world.close()


def sowstream(world: World, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "processor.cli.main", *arguments, "-c", str(world.file)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env={**os.environ, **env}
    )


def deleting(text: str, ack: str = "processed") -> tuple[None, None, dict[str, str]]:
    """A delete by filter for one partition."""
    return None, None, {"command": "sow_delete", "filter": text, "ack_type": ack, "client": "desk", "command_id": "c"}


def _all_merged(world: World, keys: list[bytes], value: object, name: str | None = None) -> bool:
    """Return whether the records of these keys have a field `n` of this value."""
    records = last_per_key(world.read("sow", name))
    return all(records.get(key.decode(), {}).get("n") == value for key in keys)


def test_a_delete_that_is_too_costly_is_a_dead_letter_and_the_next_commands_go_on(world: World) -> None:
    """A delete by a filter over its budget becomes a dead letter at once, and commands behind it are carried out."""
    world.start()
    world.publish([(b"%d" % number, {"id": number, "n": 1}, {}) for number in range(2000)])
    world.publish([deleting(COSTLY), *[(b"%d" % number, {"id": number, "n": 2}, {}) for number in range(20)]])
    world.wait(world.processed, "processing all input")
    letters = world.read("dlq")
    assert [letter.headers["dlq_reason"] for letter in letters] == ["bad_header"]
    assert "up to here its functions make" in letters[0].headers["dlq_detail"]
    assert _all_merged(world, KEYS[:20], 2)
    assert len(last_per_key(world.read("sow"))) == 2000


@pytest.mark.long
def test_a_function_that_hangs_holds_its_partition_and_the_others_go_on(
    plugged: tuple[World, dict[str, str]],
) -> None:
    """After a filter function hung, the successor holds the partition at that command, and skips it by order."""
    world, env = plugged
    other = world.names[1]
    worker = world.start(env=env)
    world.publish([(b"%d" % number, {"id": number, "n": 1}, {}) for number in range(40)])
    world.publish([(b"%d" % number, {"id": number, "n": 1}, {}) for number in range(40)], name=other)
    world.wait(lambda: _all_merged(world, KEYS, 1) and _all_merged(world, KEYS, 1, other), "merging the records")
    world.publish([deleting("HANG(/id) = 99")])
    worker.is_expected_to_end = True
    world.publish([(b"%d" % number, {"id": number, "n": 2}, {}) for number in range(40)])
    world.publish([(b"%d" % number, {"id": number, "n": 2}, {}) for number in range(40)], name=other)
    assert worker.process.wait(timeout=PATIENCE_S) == 1, worker.log()
    successor = world.start(env=env)
    held = _held(world, env)
    at_fault = {place["partition"]: place["offset"] for place in held}
    assert len(at_fault) == 1, held
    assert held[0]["reason"] == "stuck"
    ((partition, offset),) = at_fault.items()
    # The neighbours, partitions of the same topic too, have all that came behind the command.
    stuck = {record.key for record in world.read("publish") if record.partition == partition}
    free = [key for key in KEYS if key not in stuck]
    assert len(free) > 10
    world.wait(
        lambda: _all_merged(world, free, 2) and _all_merged(world, KEYS, 2, other), "merging the neighbours' records"
    )
    assert successor.process.poll() is None
    done = sowstream(
        world, "resume", world.name, "--partition", str(partition), "--skip", str(offset), "--yes", env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    world.wait(world.processed, "processing the rest of the held partition")
    assert _all_merged(world, KEYS, 2)
    assert [letter.headers["dlq_reason"] for letter in world.read("dlq")] == ["skipped"]
    world.wait(lambda: '"event": "partition goes on"' in successor.file.read_text(), "the end of the hold")
    assert successor.process.poll() is None


def _held_now(world: World, env: dict[str, str]) -> list[dict[str, object]]:
    """The held partitions, as `sowstream status` shows them; one of unknown reason without an answer."""
    done = sowstream(world, "status", "--json", env=env)
    print(done.stderr)
    return _places(json.loads(done.stdout)) if done.stdout else [{"reason": "unknown"}]


def _places(shown: object) -> list[dict[str, object]]:
    """Each held partition in a JSON value, with its hold."""
    if isinstance(shown, dict):
        inner = [place for value in shown.values() for place in _places(value)]
        held = shown.get("held")
        return [*([{**held, "partition": shown["partition"]}] if isinstance(held, dict) else []), *inner]
    return [place for value in shown for place in _places(value)] if isinstance(shown, list) else []


def _held(world: World, env: dict[str, str]) -> list[dict[str, object]]:
    places: list[dict[str, object]] = []

    def is_held() -> bool:
        places[:] = _held_now(world, env)
        return [place["reason"] for place in places] == ["stuck"]

    world.wait(is_held, "a held partition in `sowstream status`")
    return places
