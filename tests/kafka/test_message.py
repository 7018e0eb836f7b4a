"""Messages as Kafka's client gives them, the offsets of records, and committed offsets."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import CommittedOffsets
from processor.kafka.clients.record_offsets import RANGE_MAX, record_offsets
from processor.kafka.message import readable_records
from processor.topics.family import TopicSpec, family_specs


class Damaged:
    """A message that cannot be converted, as a client's library might return it."""

    def key(self) -> bytes:
        """Fail."""
        raise SystemError("no such object")

    def offset(self) -> int:
        """Its offset."""
        return 9


def message(offset: int) -> Message:
    """A message at an offset."""
    return Message(topic="t", partition=0, offset=offset, key=b"k", value=b"v", timestamp=(1, 5))


def test_records_before_one_that_cannot_be_converted_are_returned_with_the_reason() -> None:
    """An exception of the client is a problem of one record, whose offset is named."""
    converted, problem = readable_records([message(7), message(8), Damaged(), message(10)], 11)  # type: ignore[list-item]
    assert [record.offset for record in converted] == [7, 8]
    assert problem == "the record at offset 9 cannot be converted: SystemError('no such object')"


@pytest.mark.parametrize(
    ("offsets", "end", "readable", "wrong"),
    [
        ([1, 2, 3], 4, [1, 2, 3], None),
        ([1, 5, 9], 20, [1, 5, 9], None),
        ([1, 2], -1001, [1, 2], None),
        ([3, 4, 4], 6, [3], 4),
        ([2, 4, 3], 6, [2], 3),
        ([1, 3, 2, 4], 6, [1, 3, 2, 4], None),
        ([4, 3], 6, [], 3),
        ([4, 700], 5, [4], 700),
        ([700], 5, [], 700),
    ],
)
def test_offsets_that_no_record_can_have_end_the_records(
    offsets: list[int], end: int, readable: list[int], wrong: int | None
) -> None:
    """A gap is left by compaction or markers; an unknown end is negative; a broker may pass on any offset.

    Disorder is seen where it would move the position: not where later records make up for it.
    """
    converted, problem = readable_records([message(offset) for offset in offsets], end)
    assert [record.offset for record in converted] == readable
    assert (wrong is None) == (problem == "")
    assert problem == "" or f"its offset is {wrong}," in problem


@pytest.mark.broker
def test_markers_and_aborted_records_are_no_records(bootstrap: str, unique: str) -> None:
    """Of a range only committed records are returned: no markers, no aborted ones, none behind its end."""
    kafka = {"bootstrap.servers": bootstrap}
    [spec] = [spec for spec in family_specs(unique, ("publish",), partitions=2) if isinstance(spec, TopicSpec)]
    Admin(kafka).create([spec])
    producer = Producer({**kafka, "transactional.id": unique})
    producer.init_transactions(60)
    for is_committed in (True, False, True):
        producer.begin_transaction()
        for _ in range(2):
            producer.produce(spec.name, b"{}", b"k", 0)
        producer.flush(60)
        producer.commit_transaction(60) if is_committed else producer.abort_transaction(60)
    place, other = (spec.name, 0), (spec.name, 1)
    # Two records and a marker, two aborted ones and a marker, two records and a marker.
    assert record_offsets(kafka, unique, {place: (0, 9), other: (0, 0)}) == {place: [0, 1, 6, 7]}
    assert record_offsets(kafka, unique, {place: (1, 7)}) == {place: [1, 6]}
    assert record_offsets(kafka, unique, {place: (8, 9)}) == {place: []}
    assert record_offsets(kafka, unique, {place: (0, RANGE_MAX + 1)}) == {}
    assert record_offsets(kafka, unique, {("missing", 0): (0, 5), place: (8, 9)}) == {place: []}


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


def test_no_request_to_a_coordinator_has_a_time_limit_of_librdkafkas() -> None:
    """One that has timed out ends the process when the coordinator is found (librdkafka's pull request 5397)."""
    limits = {
        ast.unparse(node): [ast.unparse(one.value) for one in node.keywords if one.arg == "request_timeout"]
        for folder in ("processor", "spark_integration")
        for path in (ROOT / folder).rglob("*.py")
        if "consumer_group" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and re.fullmatch(r".+_consumer_group(s|_offsets)", ast.unparse(node.func))
    }
    assert len(limits) >= 4
    assert {call: limit for call, limit in limits.items() if limit != ["COORDINATOR_TIMEOUT_S"]} == {}
