"""The guard against partitions that Kafka does not hand out: it looks when nothing comes, and raises the limit."""

from __future__ import annotations

import logging

import pytest

from processor.client.queue.stall_guard import LOCKS_MAX, Sight, StallGuard
from processor.errors import BrokerUnavailable, Stop
from tests.client.queue.fake_leases import FakeLeases

PATIENCE_S = 10.0


class Group:
    """A share group whose state a test sets."""

    def __init__(self) -> None:
        self.locks = 2000
        self.waiting: dict[int, int] = {}
        self.looks = 0
        self.fault: Stop | None = None

    def look(self) -> Sight:
        """The state now."""
        self.looks += 1
        if isinstance(self.fault, BrokerUnavailable):
            raise self.fault
        return Sight(self.locks, dict(self.waiting))

    def raise_to(self, locks: int) -> None:
        """Set the limit."""
        if self.fault is not None:
            raise self.fault
        self.locks = locks


class Stage:
    """A guard over an empty source, and its clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.source, self.group = FakeLeases(), Group()
        self.guard = StallGuard(self.source, self.group, patience_s=PATIENCE_S, clock_s=lambda: self.now_s)

    def wait(self, times: int = 1) -> None:
        """Let the patience end, with a poll that brings nothing."""
        for _ in range(times):
            self.now_s += PATIENCE_S
            assert self.guard.poll(0) == []


@pytest.fixture
def stage() -> Stage:
    """The stage of a test."""
    return Stage()


def test_a_stalled_partition_is_freed_by_a_higher_limit(stage, caplog):
    """Messages wait at one place for two looks, and none came: the limit is doubled, with a line in the log."""
    stage.group.waiting = {1: 5896, 2: 5741}
    stage.wait()
    assert stage.group.locks == 2000, "one look proves nothing"
    stage.wait()
    assert stage.group.locks == 4000
    assert "handed out nothing of partitions [1, 2]" in caplog.text
    assert "from 2000 to 4000" in caplog.text


def test_an_empty_or_moving_queue_is_left_alone(stage):
    """Nothing waits, or the place moves: the limit stays."""
    stage.wait(5)
    for start in range(5):
        stage.group.waiting = {0: start}
        stage.wait()
    assert stage.group.locks == 2000


def test_a_limit_that_another_consumer_has_just_raised_is_given_time(stage):
    """Of many consumers that see the same, one raises the limit."""
    stage.group.waiting = {0: 7}
    stage.wait()
    stage.group.locks = 4000
    stage.wait()
    assert stage.group.locks == 4000
    stage.wait()
    assert stage.group.locks == 8000, "it did not help"


def test_messages_that_come_need_no_look(stage):
    """A consumer that is given messages asks nothing."""
    for _ in range(5):
        stage.now_s += PATIENCE_S
        stage.source.append(b"{}")
        for lease in stage.guard.poll(0):
            stage.guard.settle(lease, "accept")
    assert stage.group.looks == 0


def test_at_the_brokers_highest_limit_a_person_has_to_act(stage, caplog):
    """There is nothing to raise any more: the log says what helps."""
    stage.group.locks, stage.group.waiting = LOCKS_MAX, {0: 7}
    stage.wait(2)
    assert stage.group.locks == LOCKS_MAX
    assert "restart the brokers" in caplog.text


def test_a_missing_right_and_a_silent_kafka_end_nothing(stage, caplog):
    """Without the right the log has the setting to change; without an answer it looks again later."""
    caplog.set_level(logging.INFO)
    stage.group.waiting = {0: 7}
    stage.group.fault = BrokerUnavailable("no answer")
    stage.wait(3)
    assert "cannot be looked at: no answer" in caplog.text
    stage.group.fault = Stop("GROUP_AUTHORIZATION_FAILED")
    stage.wait(2)
    assert "raise share.partition.max.record.locks of the share group above 2000: GROUP_AUTH" in caplog.text
    stage.group.fault = None
    stage.wait(1)
    assert stage.group.locks == 4000
