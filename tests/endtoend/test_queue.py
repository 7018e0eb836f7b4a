"""Queues on a real Kafka: filled by workers in their transactions, shared by consumers (queues.md)."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from processor.errors import ConfigurationError, VersionConflict
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.operate.queue_status import queue_status
from processor.operate.waiting_letters import WaitingLetters
from processor.queues.share_groups import ShareGroups, set_share_groups, share_group_problems
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker

LEASE_S = 30.0
"""The lease: longer than a busy machine holds up a consumer."""

IDLE_S = 20.0
"""No message comes for so long where none is left."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """A topic with a queue of its paid records, whose share group is set up."""
    queue: dict[str, Any] = {"underlying": unique, "filter": "/state = 'paid'", "lease": LEASE_S, "max_deliveries": 2}
    made = World(bootstrap, tmp_path, unique, sections={"queues": {f"{unique}_paid": queue}})
    set_share_groups(made.config)
    yield made
    made.close()


def paid(world: World) -> str:
    """The queue of the world."""
    return f"{world.name}_paid"


def test_two_consumers_share_the_messages_of_a_worker(world: World) -> None:
    """Each paid record is acknowledged once, by one of two consumers; others are on no queue; nothing is left."""
    world.start()
    count = 200
    world.publish([(b"%d" % n, {"id": n, "state": "new"}, {}) for n in range(count)])
    world.publish([(b"%d" % n, {"id": n, "state": "paid"}, {}) for n in range(0, count, 2)])
    world.settle()
    seen: list[tuple[int, Any]] = []
    with Client("consumers", world.config) as client:
        for who in range(2):
            client.queue(paid(world), on_message=lambda message, who=who: seen.append((who, message)))
        until(lambda: len(seen) >= count // 2, lambda: len(seen))
        until(lambda: queue_status(world.config, paid(world)).waiting == 0, "the end of the queue", pause_s=0.1)
    assert sorted(message.data["id"] for _, message in seen) == list(range(0, count, 2))
    assert all(message.data == {"id": message.data["id"], "state": "paid"} for _, message in seen)
    updates = {record.key: int(record.headers["version"]) for record in world.read("sow")}
    assert all(message.version == updates[str(message.data["id"]).encode()] for _, message in seen)
    assert queue_status(world.config, paid(world)).dead == 0


@pytest.mark.long
def test_rejected_messages_and_those_that_fail_too_often_are_dead_letters(world: World) -> None:
    """A rejection and the last released delivery are letters with their reasons, which `dlq list` shows."""
    world.start()
    world.publish([(b"%d" % n, {"id": n, "state": "paid"}, {}) for n in (1, 2, 3)])
    world.settle()
    with Client("consumer", world.config) as client:
        # 1 comes once, 2 twice, and 3 once.
        for message in itertools.islice(client.queue(paid(world), timeout_s=PATIENCE_S), 4):
            if message.data["id"] == 1:
                message.reject("no such customer")
            elif message.data["id"] == 2:
                message.release()
    with WaitingLetters(world.config, paid(world)) as waiting:
        letters = {letter.record.key: letter for _, batch in waiting.letters() for letter in batch}
    assert {key: letter.reason for key, letter in letters.items()} == {b"1": "rejected", b"2": "max_deliveries"}
    assert letters[b"1"].detail == "no such customer"
    assert queue_status(world.config, paid(world)).dead == 2


@pytest.mark.long
def test_a_message_that_ends_each_consumer_is_dead_alone(world: World) -> None:
    """A program that raises at one message whenever it is started acknowledges all others."""
    world.start()
    world.publish([(b"%d" % n, {"id": n, "state": "paid"}, {}) for n in range(20)])
    world.settle()
    acknowledged: set[int] = set()

    def consume(count: int) -> None:
        with Client("consumer", world.config) as client:
            for message in itertools.islice(client.queue(paid(world), timeout_s=PATIENCE_S), count):
                if message.data["id"] == 7:
                    raise ZeroDivisionError
                message.ack()
                acknowledged.add(message.data["id"])

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            consume(20)
    consume(19 - len(acknowledged))
    with WaitingLetters(world.config, paid(world)) as waiting:
        letters = [letter.record.key for _, batch in waiting.letters() for letter in batch]
    assert (letters, acknowledged) == ([b"7"], set(range(20)) - {7})


@pytest.mark.long
def test_a_rolled_back_record_is_never_delivered(world: World) -> None:
    """Records of a transaction that was rolled back on the queue topic reach no consumer; those around it do."""
    topic = world.config.kafka_names.topic(paid(world), "queue")
    producer = TransactionalProducer(world.config.kafka, transactional_id=f"{world.name}.x", transaction_timeout_s=10)
    producer.start()
    world.start()
    for n in range(3):
        producer.send(topic, 0, [(b"rolled back", b'{"id":"rolled back"}', [("version", b"1")])])
        producer.abort()
        world.publish([(b"%d" % n, {"id": n, "state": "paid"}, {})])
        world.settle()
    producer.close()
    with Client("consumer", world.config) as client:
        messages = client.queue(paid(world), timeout_s=PATIENCE_S)
        seen = []
        for message in itertools.islice(messages, 3):
            seen.append(message.data["id"])
            message.ack()
        assert sorted(seen) == [0, 1, 2]
        assert messages.next_within(IDLE_S) is None


def test_a_group_with_kafkas_own_settings_is_refused_and_apply_sets_them(world: World) -> None:
    """Kafka's defaults would deliver rolled-back records: no consumer begins, until `topics apply` has set them.

    The status names a setting that differs, and no other.
    """
    name = f"{world.name}_other"
    config = world.config.model_copy(update={"queues": {name: world.config.queues[paid(world)]}})
    problems = share_group_problems(config)
    assert {problem.severity for problem in problems} >= {"refuse"}
    assert ["share.isolation.level" in str(problem) for problem in problems].count(True) == 1
    group = world.config.share_group(paid(world))
    ShareGroups(world.config.kafka).set(group, {"share.isolation.level": "read_uncommitted"})
    with Client("consumer", world.config) as client, pytest.raises(ConfigurationError, match="rolled-back"):
        client.queue(paid(world))
    status = queue_status(world.config, paid(world))
    assert status.lines == ["waiting\t0", "dead\t0"]
    assert "share.isolation.level is read_uncommitted" in "".join(map(str, status.problems))
    assert set_share_groups(world.config) == {group: ["share.isolation.level"]}
    assert queue_status(world.config, paid(world)).problems == []
    assert share_group_problems(world.config) == []


def test_of_many_claims_with_one_version_one_wins(world: World) -> None:
    """Ten clients claim the same record: one future succeeds, the others raise VersionConflict with the version."""
    world.start()
    world.publish([(b"1", {"id": 1}, {})])
    world.settle()
    outcomes: list[Any] = []
    with Client("claims", world.config) as client:
        barrier = threading.Barrier(10)
        begun = client.get(world.name, "1")
        assert begun is not None
        assert begun.version is not None

        def claim(who: int) -> None:
            barrier.wait()
            future = client.delta_publish(world.name, {"id": 1, "owner": who}, expect_version=begun.version)
            assert future is not None
            error = future.exception(120)
            outcomes.append(who if error is None else error)

        threads = [threading.Thread(target=claim, args=(who,)) for who in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        record = client.get(world.name, "1")
    winners = [one for one in outcomes if isinstance(one, int)]
    assert [record.data["owner"]] == winners
    conflicts = [one for one in outcomes if isinstance(one, VersionConflict)]
    assert (len(conflicts), {one.version for one in conflicts}) == (9, {begun.version + 1})
