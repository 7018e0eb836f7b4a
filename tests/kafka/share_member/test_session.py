"""The share session with a broker: numbers of requests, and differences of partitions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from processor.kafka.share_member.session import ShareSession

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
