"""The membership in a share group, by the coordinator's answers."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from processor.errors import Stop
from processor.kafka.share_member.membership import Membership

TOPIC = uuid.UUID(int=1)


def answer(code: int = 0, epoch: int = 1, partitions: list[int] | None = None) -> Any:
    """A coordinator's answer."""
    assignment = None
    if partitions is not None:
        assignment = SimpleNamespace(topic_partitions=[SimpleNamespace(topic_id=TOPIC, partitions=partitions)])
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
    assert membership.partitions == {TOPIC: {0, 2}}
    assert (membership.heartbeat.member_epoch, membership.heartbeat.subscribed_topic_names) == (1, None)
    assert membership.pause_s == 3.0
    membership.answered(answer(epoch=2))
    assert (membership.partitions, membership.epoch) == ({TOPIC: {0, 2}}, 2)
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
    assert (membership.epoch, membership.partitions) == (1, {TOPIC: {0}})


def test_a_missing_right_ends_it(membership):
    """GROUP_AUTHORIZATION_FAILED is no matter of time."""
    with pytest.raises(Stop, match="the share group g: Kafka refuses: this user lacks a right to the consumer group"):
        membership.answered(answer(30))


def test_ids_never_begin_with_a_dash():
    """Kafka's command lines would take such an id for an option."""
    assert not any(Membership("g", "t").id.startswith("-") for _ in range(2000))
