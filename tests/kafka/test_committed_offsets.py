"""Committed offsets are asked for by consumers that never join, as an admin client may die of the answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import CommittedOffsets
from processor.topics.family import TopicSpec

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0


@pytest.fixture
def committed(bootstrap: str, unique: str) -> tuple[CommittedOffsets, str]:
    """A group that has committed offset 7 of partition 1, and none of partition 0, of a topic of its own name."""
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create([TopicSpec(unique, "publish", 2, {})])
    admin.set_offsets(unique, unique, {1: 7})
    return CommittedOffsets({"bootstrap.servers": bootstrap}, is_stable=True), unique


def offsets(asked: CommittedOffsets, name: str) -> dict[int, int]:
    """The offsets of both partitions as Kafka answers them."""
    places = asked.ask(name, [(name, 0), (name, 1)], TIMEOUT_S).result(2 * TIMEOUT_S)
    return {place.partition: place.offset for place in places}


@pytest.mark.broker
def test_offsets_of_a_group_are_answered(committed: tuple[CommittedOffsets, str]) -> None:
    """A partition without a committed offset has a negative one; the group gets no member."""
    asked, name = committed
    assert offsets(asked, name) == {0: -1001, 1: 7}


@pytest.mark.broker
def test_a_new_connection_gives_the_same_answer(committed: tuple[CommittedOffsets, str]) -> None:
    """After `renew` another consumer asks than before."""
    asked, name = committed
    first = offsets(asked, name)
    former = asked._consumers[name, True]
    asked.renew()
    assert offsets(asked, name) == first
    assert asked._consumers[name, True] is not former


@pytest.mark.broker
def test_an_undecided_offset_differs_from_a_silent_kafka(
    committed: tuple[CommittedOffsets, str], bootstrap: str
) -> None:
    """The partition of an open transaction has the error that says so; the other one has its answer."""
    asked, name = committed
    kafka = {"bootstrap.servers": bootstrap}
    writer = Producer(kafka | {"transactional.id": name})
    writer.init_transactions(120)
    writer.begin_transaction()
    group = Consumer(kafka | {"group.id": name})
    writer.send_offsets_to_transaction([TopicPartition(name, 0, 3)], group.consumer_group_metadata(), 30)
    for places in ([(name, 0)], [(name, 0), (name, 1)]):
        with pytest.raises(KafkaException) as failed:
            asked.ask(name, places, 2.0).result(TIMEOUT_S)
        assert failed.value.args[0].code() == KafkaError.UNSTABLE_OFFSET_COMMIT
    [ready] = asked.ask(name, [(name, 1)], 2.0).result(TIMEOUT_S)
    assert ready.offset == 7
    writer.commit_transaction(120)
    assert offsets(asked, name) == {0: 3, 1: 7}
    group.close()


def test_without_an_answer_the_request_fails_in_time() -> None:
    """Kafka's error stands for the answer when no broker is there."""
    asked = CommittedOffsets({"bootstrap.servers": "127.0.0.1:1"}, is_stable=True)
    with pytest.raises(KafkaException):
        asked.ask("desk", [("orders", 0)], 0.2).result(TIMEOUT_S)


def test_no_admin_client_is_asked_for_committed_offsets() -> None:
    """Its answer of a broker that is no coordinator ends the process (librdkafka's issue 5040)."""
    sources = [path for folder in ("processor", "spark_integration") for path in (ROOT / folder).rglob("*.py")]
    callers = [path for path in sources if re.search(r"\.list_consumer_group_offsets\(", path.read_text("utf-8"))]
    assert callers == []
