"""A member of a share group: its session by the coordinator's answers, and its limits without any answer."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from processor.errors import Stop
from processor.queues.transport import share_member
from processor.queues.transport.share_member import ShareReader
from processor.queues.transport.share_session import Membership, ShareSession

MEMBER_TOPIC = uuid.UUID(int=1)


def answer(code: int = 0, epoch: int = 1, partitions: list[int] | None = None) -> Any:
    """A coordinator's answer."""
    assignment = None
    if partitions is not None:
        assignment = SimpleNamespace(topic_partitions=[SimpleNamespace(topic_id=MEMBER_TOPIC, partitions=partitions)])
    return SimpleNamespace(
        error_code=code, error_message=None, member_epoch=epoch, heartbeat_interval_ms=3000, assignment=assignment
    )


@pytest.fixture
def membership() -> Membership:
    """A membership that has not joined yet."""
    return Membership("g", "orders.queue")


def test_a_member_joins_with_its_topic_and_stays_with_its_epoch(membership):
    """The first heartbeat names the topic; the next have the epoch; an answer may leave the partitions as they are."""
    assert (membership.heartbeat.member_epoch, membership.heartbeat.subscribed_topic_names) == (0, ["orders.queue"])
    assert membership.answered(answer(partitions=[0, 2])) == 0
    assert membership.partitions == {MEMBER_TOPIC: {0, 2}}
    assert (membership.heartbeat.member_epoch, membership.heartbeat.subscribed_topic_names) == (1, None)
    assert membership.pause_s == 3.0
    membership.answered(answer(epoch=2))
    assert (membership.partitions, membership.epoch) == ({MEMBER_TOPIC: {0, 2}}, 2)
    assert membership.farewell.member_epoch == -1


def test_heartbeats_come_fast_until_there_are_partitions(membership):
    """A member without partitions asks soon, and less often each time, so that a reader begins quickly."""
    membership.answered(answer(partitions=[]))
    pauses = [membership.pause_s for _ in range(10)]
    assert pauses[0] < 0.5
    assert pauses == sorted(pauses)
    assert pauses[-1] == 3.0


@pytest.mark.parametrize("code", [25, 110])
def test_a_forgotten_member_joins_again_under_its_id(membership, code):
    """After UNKNOWN_MEMBER_ID and FENCED_MEMBER_EPOCH it has no partitions, and begins with epoch 0."""
    membership.answered(answer(partitions=[0]))
    before = membership.id
    assert membership.answered(answer(code)) == code
    assert (membership.partitions, membership.heartbeat.member_epoch, membership.id) == ({}, 0, before)
    membership.answered(answer(partitions=[1]))
    assert membership.joins == 2


def test_a_busy_coordinator_is_asked_again(membership):
    """Other errors leave the membership as it is."""
    membership.answered(answer(partitions=[0]))
    assert membership.answered(answer(15)) == 15
    assert (membership.epoch, membership.partitions) == (1, {MEMBER_TOPIC: {0}})


def test_a_missing_right_ends_it(membership):
    """GROUP_AUTHORIZATION_FAILED is no matter of time."""
    with pytest.raises(Stop, match="the share group g: Kafka refuses: this user lacks a right to the consumer group"):
        membership.answered(answer(30))


def test_ids_never_begin_with_a_dash():
    """Kafka's command lines would take such an id for an option."""
    assert not any(Membership("g", "t").id.startswith("-") for _ in range(2000))


TOPIC, LATER_TOPIC = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.fixture
def session() -> ShareSession:
    """A session that is not open yet."""
    return ShareSession("g", "m")


def fetch(session: ShareSession, partitions: set[int], outcomes: dict[int, dict[int, int]] | None = None, topic=TOPIC):
    """Its next fetch."""
    return session.fetch(topic, partitions, outcomes or {}, records_max=5, wait_ms=100)


def named(request: Any) -> list[int]:
    """The partitions that a request names."""
    return [part.partition_index for topic in request.topics for part in topic.partitions]


def test_the_first_fetch_names_all_partitions_and_later_ones_the_differences(session):
    """Epoch 0 opens it; then the epoch counts, and only new, acknowledged and forgotten partitions are named."""
    first = fetch(session, {0, 1})
    assert (first.share_session_epoch, named(first)) == (0, [0, 1])
    assert not session.is_open
    session.went_on()
    assert session.is_open
    second = fetch(session, {0, 1})
    assert (second.share_session_epoch, named(second), second.forgotten_topics_data) == (1, [], [])
    session.went_on()
    third = fetch(session, {1, 2}, {1: {7: 1, 8: 1}})
    assert (third.share_session_epoch, named(third)) == (2, [1, 2])
    assert [(gone.topic_id, gone.partitions) for gone in third.forgotten_topics_data] == [(TOPIC, [0])]
    batches = third.topics[0].partitions[0].acknowledgement_batches
    assert [(batch.first_offset, batch.last_offset, batch.acknowledge_types) for batch in batches] == [(7, 8, [1])]


def test_a_request_without_an_answer_changes_nothing(session):
    """Until the broker has taken a request, its differences are named again."""
    fetch(session, {0})
    assert named(fetch(session, {0, 1})) == [0, 1]


def test_outcomes_go_alone_too_and_the_last_request_closes(session):
    """An acknowledgement counts as a request; epoch -1 ends the session."""
    fetch(session, {0})
    session.went_on()
    request = session.acknowledge(TOPIC, {0: {3: 2}})
    assert (request.share_session_epoch, named(request), request.is_renew_ack) == (1, [0], False)
    session.went_on()
    assert fetch(session, {0}).share_session_epoch == 2
    assert session.acknowledge(TOPIC, {0: {3: 4}}).is_renew_ack
    assert session.acknowledge(TOPIC, {}, closes=True).share_session_epoch == -1


def test_a_lost_session_begins_again(session):
    """After `restart` the next fetch opens a session, with all partitions."""
    fetch(session, {0})
    session.went_on()
    session.restart()
    again = fetch(session, {0})
    assert (again.share_session_epoch, named(again), session.is_open) == (0, [0], False)


def test_a_topic_that_was_made_again_is_another_one(session):
    """The partitions of the deleted topic are forgotten by its id, and those of the new one are named."""
    fetch(session, {0})
    session.went_on()
    request = fetch(session, {0}, topic=LATER_TOPIC)
    assert [(topic.topic_id, len(topic.partitions)) for topic in request.topics] == [(LATER_TOPIC, 1)]
    assert [(gone.topic_id, gone.partitions) for gone in request.forgotten_topics_data] == [(TOPIC, [0])]


# kafka-python leaves the socket of a failed connection to Python, which may close it in the midst of a test.

CLOSE_MAX_S = 60.0
"""Less than the limit of these tests for a member that has something to say."""


@pytest.fixture
def listener(failed_connections: None) -> Iterator[socket.socket]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def reader_of(server: socket.socket) -> ShareReader:
    """A member whose only broker has this port."""
    kafka = {"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}
    return ShareReader(kafka, group="g", topic="t", absence_max_s=60, on_lost=lambda *_: None)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("is_silent", [False, True], ids=["absent", "silent"])
def test_a_member_without_a_broker_waits_and_closes_at_once(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, is_silent: bool
):
    """An absent or silent Kafka is no error: nothing comes, and the end of the member waits for nothing."""
    monkeypatch.setattr(share_member, "_CLOSE_TIMEOUT_S", 10 * CLOSE_MAX_S)
    threads = set(threading.enumerate())
    reader = reader_of(listener)
    if not is_silent:
        listener.close()
    assert reader.poll(0.2, 1) == []
    began_s = time.monotonic()
    reader.close()
    assert time.monotonic() - began_s < CLOSE_MAX_S
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("kafka-io")]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_the_end_of_the_network_thread_is_an_error(listener: socket.socket, monkeypatch: pytest.MonkeyPatch):
    """A defect that ended the thread is raised by the next call: it does not look like an empty queue."""
    reader = reader_of(listener)
    monkeypatch.setattr(reader._member._network._loop, "_exception", RuntimeError("a defect"))
    with pytest.raises(Stop, match="the network thread has ended: RuntimeError: a defect"):
        reader.poll(1, 1)
    monkeypatch.undo()
    reader.close()
