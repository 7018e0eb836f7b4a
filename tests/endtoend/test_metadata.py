"""Sequences, marks, expiration and acks outlive the worker that promised them; refused numbers, jumps, many names."""

from __future__ import annotations

import json
import random
import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from processor.client import Client
from processor.errors import ConfigurationError, PublishRejected, VersionConflict
from tests.endtoend.oracle import last_per_key, replay
from tests.endtoend.world import World
from tests.forked import run
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.endtoend.oracle import Seen


pytestmark = pytest.mark.broker

LIFE_S = 45.0  # Longer than a worker takes from a merge to its kill, also on a machine with other work.


@pytest.mark.long
def test_marks_and_ends_outlive_a_killed_worker_and_its_disk(world: World) -> None:
    """A worker on an empty disk skips repeated records, and expires the due records in order."""
    rng = random.Random(41)
    short_lived = {f"e{n}": LIFE_S + rng.randrange(500) / 1000 for n in range(40)}
    world.publish([*(numbered(n, n) for n in range(1, 51)), bad(51), *mortal(short_lived | {"renewed": LIFE_S})])
    first = world.start()
    world.settle()
    first.kill()
    world.forget_state()

    before = world.read("sow")
    ends = {
        record.key.decode(): int(record.headers["expires_at"]) for record in before if "expires_at" in record.headers
    }
    assert not any("kind" in record.headers and record.headers["kind"] == "expire" for record in before), "too slow"
    check_acks(world, range(1, 51))
    wait_until(max(ends.values()))
    # One delta was published before the end of its record, though nobody was there to merge it, and one after it.
    publish_at(world, "renewed", {"id": "renewed", "b": 1}, ends["renewed"] - 1)
    publish_at(world, "e0", {"id": "e0", "b": 1}, ends["e0"])
    world.publish([numbered(n, n if n > 51 else "again") for n in range(40, 61) if n != 51])

    second = world.start()
    world.settle()
    world.wait(lambda: len(expired(world.read("sow"))) == len(short_lived), "the end of all that was due")
    sow, state = world.read("sow"), last_per_key(world.read("sow"))
    assert {key: body["n"] for key, body in state.items() if key.startswith("n")} == {
        f"n{n}": n for n in range(1, 61) if n != 51
    }
    assert state["renewed"] == {"id": "renewed", "a": 1, "b": 1}
    assert state["e0"] == {"id": "e0", "b": 1}
    assert set(short_lived) & set(state) == {"e0"}
    for partition in range(4):
        keys = [record.key.decode() for record in expired(sow) if record.partition == partition and record.key != b"e0"]
        assert keys == sorted(keys, key=lambda key: ends[key])
    assert replay(world.read("delta")) == state
    check_acks(world, [n for n in range(1, 61) if n != 51])
    again = [ack["sequence"] for _, ack in acks(world) if ack.get("reason") == "duplicate"]
    assert sorted(again) == list(range(40, 51))
    assert second.stop() == 0, second.log()


def numbered(sequence: int, n: Any) -> tuple[bytes, Any, dict[str, str]]:
    """Build a record with a client's sequence number, which asks for an ack."""
    headers = {"client": "desk", "sequence": str(sequence), "ack_type": "persisted"}
    return b"n%d" % sequence, {"id": f"n{sequence}", "n": n}, headers


def bad(sequence: int) -> tuple[bytes, Any, dict[str, str]]:
    """Build a record that is rejected."""
    return numbered(sequence, 0)[0], b"{", numbered(sequence, 0)[2]


def mortal(lives_s: dict[str, float]) -> list[tuple[bytes, Any, dict[str, str]]]:
    """Build records that expire."""
    return [(key.encode(), {"id": key, "a": 1}, {"expiration": str(life_s)}) for key, life_s in lives_s.items()]


def wait_until(ms: int) -> None:
    """Wait until the wall clock reaches a time, which is the fact to test."""
    while time.time() * 1000 <= ms:
        time.sleep(max(0.0, ms / 1000 - time.time()) + 0.001)


def publish_at(world: World, key: str, body: Any, timestamp_ms: int) -> None:
    """Publish a record with a timestamp."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "partitioner": "murmur2_random"})
    producer.produce(f"{world.name}.publish", json.dumps(body).encode(), key, timestamp=timestamp_ms)
    assert producer.flush(PATIENCE_S) == 0


def expired(sow: list[Seen]) -> list[Seen]:
    """Return the tombstones of expired records."""
    return [record for record in sow if record.headers.get("kind") == "expire"]


def acks(world: World) -> list[tuple[int, dict[str, Any]]]:
    """Return every ack with its partition."""
    return [(record.partition, json.loads(record.value or b"")) for record in world.read("ack")]


def check_acks(world: World, taken: Any) -> None:
    """Check that every partition acknowledged its highest sequence, and the rejected record alone."""
    highest: dict[int, int] = defaultdict(int)
    for record in world.read("publish"):
        sequence = int(record.headers.get("sequence", 0))
        if sequence in taken:
            highest[record.partition] = max(highest[record.partition], sequence)
    told: dict[int, int] = defaultdict(int)
    for partition, ack in acks(world):
        if ack["status"] == "success":
            told[partition] = max(told[partition], ack["sequence"])
    assert told == highest
    [failure] = [ack for _, ack in acks(world) if ack["status"] == "failure"]
    assert (failure["client"], failure["sequence"], failure["sow_key"]) == ("desk", 51, "n51")
    assert failure["reason"].startswith("undecodable: ")


def test_a_record_does_not_expire_before_an_update_that_no_reader_may_see_yet(world: World) -> None:
    """An update that was in Kafka in time, behind the end that readers of committed records get, finds its record."""
    world.publish(mortal({"k": 1.0}))
    properties = {"bootstrap.servers": world.bootstrap, "partitioner": "murmur2_random", "transactional.id": world.name}
    publisher = Producer(properties)
    publisher.init_transactions(PATIENCE_S)
    publisher.begin_transaction()
    publisher.produce(f"{world.name}.publish", b'{"id":"k","b":1}', "k")
    assert publisher.flush(PATIENCE_S) == 0
    worker = world.start()
    world.wait(lambda: world.read("sow"), "the first record")
    wait_until(int(world.read("sow")[0].headers["expires_at"]) + 2_000)  # Twice as late as an expiry may be.
    assert counts(world) == {"k": 1}
    publisher.commit_transaction(PATIENCE_S)
    world.wait(lambda: len(world.read("sow")) > 1, "the update")
    assert world.read("sow")[1].headers["version"] == "2"
    assert json.loads(world.read("sow")[1].value or b"") == {"id": "k", "a": 1, "b": 1}
    assert worker.stop() == 0, worker.log()


def counts(world: World) -> dict[str, int]:
    """How often each record of the test was merged: its version."""
    return {
        (record.key or b"").decode(): int(record.headers["version"])
        for record in sorted(world.read("sow"), key=lambda record: record.offset)
    }


def test_a_refused_number_is_merged_once_and_outlives_a_killed_worker_and_its_disk(world: World) -> None:
    """Sequences 1, 2 (refused), 3 and 4 (another version expected), 5: 2 and 4 are mended behind them, each once."""
    first = world.start()
    with Client("ledger", world.config) as client:
        futures = [
            client.delta_publish(world.name, body, key="7", sequence=number, ack="persisted", **more)
            for number, body, more in (
                (1, {"id": "7", "a": 1}, {}),
                (2, b"{", {}),
                (3, {"id": "7", "b": 1}, {}),
                (4, {"id": "7", "c": 1}, {"expect_version": 9}),
                (5, {"id": "7", "d": 1}, {}),
            )
        ]
        outcomes = [future.exception(120) for future in futures]
        assert [type(outcome) for outcome in outcomes[1:4]] == [PublishRejected, type(None), VersionConflict]
        first.kill()
        world.forget_state()
        second = world.start()
        assert client.mark(world.name) == 5
        for number, body in ((2, {"id": "7", "mended": 2}), (4, {"id": "7", "mended": 4})):
            mended = client.delta_publish(world.name, body, key="7", sequence=number, ack="persisted").result(120)
            assert (mended.reason, mended.is_duplicate) == ("mended", False)
            again = client.delta_publish(world.name, body, key="7", sequence=number, ack="persisted").result(120)
            assert (again.reason, again.is_duplicate) == ("duplicate", True)
    assert last_per_key(world.read("sow")) == {"7": {"id": "7", "a": 1, "b": 1, "d": 1, "mended": 4}}
    assert counts(world) == {"7": 5}
    assert second.stop() == 0, second.log()


def test_one_command_does_not_silence_a_publisher_who_can_ask_for_its_mark(world: World) -> None:
    """The highest number there is is a dead letter that names the mark; the publisher goes on, and finds its place."""
    worker = world.start()
    with Client("ledger", world.config) as client:
        assert client.mark(world.name) is None
        for number in range(1, 9):  # Over all partitions.
            client.delta_publish(world.name, {"id": f"k{number}"}, sequence=number, ack="persisted").result(120)
        world.publish([(b"k1", {"id": "k1", "a": 1}, {"client": "ledger", "sequence": "9223372036854775807"})])
        world.settle()
        assert client.mark(world.name) == 8
        client.delta_publish(world.name, {"id": "k1", "b": 1}, sequence=9, ack="persisted").result(120)
        with pytest.raises(ConfigurationError, match="no topic"):
            client.mark("other")
    [letter] = world.read("dlq")
    assert letter.headers["dlq_reason"] == "bad_header"
    assert re.search(r"the highest number of this client that was taken here is [1-8]:", letter.headers["dlq_detail"])
    assert last_per_key(world.read("sow"))["k1"] == {"id": "k1", "b": 1}
    command = ["mark", "-c", str(world.file), world.name]
    assert run(*command, "ledger").stdout == "9\n"
    other = run(*command, "desk")
    assert (other.returncode, other.stdout) == (1, "")
    assert worker.stop() == 0, worker.log()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_names_do_not_displace_a_regular_publisher(
    bootstrap: str, tmp_path: Path, unique: str
) -> None:
    """After 100,000 commands with a name each, the repeats of two publishers are duplicates, also after a restore."""
    world = World(bootstrap, tmp_path, unique, partitions=1)
    first = world.start()
    own = [
        (b"own", {"id": "own", "n": number}, {"client": client, "sequence": str(number)})
        for client, numbers in (("ledger", (1, 2)), ("desk", (20261127,)))
        for number in numbers
    ]
    world.publish(own)
    world.publish([(b"k", {"id": "k"}, {"client": f"key-{n}", "sequence": "1"}) for n in range(100_000)])
    world.settle()
    world.publish(own)
    world.settle()
    assert counts(world)["own"] == 3
    first.kill()
    world.forget_state()
    second = world.start()
    world.publish(own)
    world.settle()
    assert counts(world)["own"] == 3
    assert second.stop() == 0, second.log()
    world.close()
