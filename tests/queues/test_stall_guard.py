"""The guard against partitions that Kafka does not hand out: it looks when nothing comes, and raises the limit."""

from __future__ import annotations

import logging

import pytest

from processor.errors import BrokerUnavailable, Stop
from processor.queues.stall_guard import FOLLOW_S, LOCKS_MAX, Sight, StallGuard
from processor.queues.transport.leases import Lease
from tests.queues.fake_leases import FakeLeases

PATIENCE_S = 10.0


class Group:
    """A share group whose state a test sets."""

    def __init__(self) -> None:
        self.locks = 1000
        self.waiting: dict[int, int] = {}
        self.looks = 0
        self.fault: Stop | None = None

    def look(self) -> Sight:
        """The state now."""
        self.looks += 1
        if isinstance(self.fault, BrokerUnavailable):
            raise self.fault
        return Sight(self.locks, dict(self.waiting))

    def set_locks(self, locks: int) -> None:
        """Set the limit."""
        if self.fault is not None:
            raise self.fault
        self.locks = locks


class Stage:
    """A guard over an empty source, and its clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.source, self.group = FakeLeases(), Group()
        self.source.partitions = frozenset(range(3))
        self.guard = StallGuard(
            self.source, self.group, patience_s=PATIENCE_S, clock_s=lambda: self.now_s, run=lambda look: look()
        )
        self.guard.poll(0, 10)

    def wait(self, times: int = 1) -> None:
        """Let the patience end, with a poll that brings nothing."""
        for _ in range(times):
            self.now_s += PATIENCE_S
            assert self.guard.poll(0, 10) == []

    def message(self) -> Lease:
        """Let one message of partition 0 come."""
        self.source.append(b"{}")
        [lease] = self.guard.poll(0, 10)
        self.guard.settle(lease, "accept")
        return lease


@pytest.fixture
def stage() -> Stage:
    """The stage of a test."""
    return Stage()


def test_a_stalled_partition_is_freed_by_a_higher_limit(stage, caplog):
    """Messages wait at one place for two looks, and none came: the limit is doubled, with a line in the log."""
    stage.group.waiting = {1: 5896, 2: 5741}
    stage.wait()
    assert stage.group.locks == 1000, "one look proves nothing"
    stage.wait()
    assert stage.group.locks == 2000
    assert "handed out nothing of partitions [1, 2]" in caplog.text
    assert "from 1000 to 2000" in caplog.text


def test_an_empty_or_moving_queue_is_left_alone(stage):
    """Nothing waits, or the place moves: the limit stays."""
    stage.wait(5)
    for start in range(5):
        stage.group.waiting = {0: start}
        stage.wait()
    assert stage.group.locks == 1000


def test_the_first_look_is_early_and_takes_place_beside_the_consumer():
    """After half the patience a look begins, and no second one before it has ended."""
    stage, looks = Stage(), []
    guard = StallGuard(stage.source, stage.group, patience_s=PATIENCE_S, clock_s=lambda: stage.now_s, run=looks.append)
    for now_s, count in ((0.0, 0), (PATIENCE_S * 0.4, 0), (PATIENCE_S * 0.5, 1), (PATIENCE_S * 9, 1)):
        stage.now_s = now_s
        guard.poll(0, 10)
        assert len(looks) == count
    looks[0]()
    guard.poll(0, 10)
    assert len(looks) == 2


def test_a_stalled_partition_is_noticed_while_others_have_messages(stage):
    """Messages of partition 0 come all the time; partition 1 waits at one place, and is freed."""
    stage.group.waiting = {0: 0, 1: 7}
    for offset in range(4):
        stage.now_s += PATIENCE_S / 2
        stage.group.waiting[0] = offset
        stage.message()
    assert stage.group.locks == 2000


def test_a_message_between_two_looks_means_that_nothing_is_stalled(stage):
    """A record that comes again and again keeps its place in the group: the limit stays."""
    stage.group.waiting = {0: 0}
    for _ in range(6):
        stage.now_s += PATIENCE_S * 0.6
        stage.message()
        stage.now_s += PATIENCE_S * 0.6
        stage.guard.poll(0, 10)
    assert stage.group.looks > 2
    assert stage.group.locks == 1000


def test_the_former_limit_is_set_when_the_partitions_have_moved(stage):
    """A raised limit stays while a partition stands still, and is the former one a moment after it has moved."""
    stage.group.waiting = {1: 7, 2: 9}
    stage.wait(2)
    for waiting, locks in (({1: 7, 2: 9}, 2000), ({1: 7, 2: 11}, 2000), ({2: 12}, 1000)):
        stage.group.waiting = waiting
        stage.now_s += FOLLOW_S
        stage.message()
        assert stage.group.locks == locks
    stage.group.waiting = {1: 3000}
    stage.wait(1)
    assert stage.group.locks == 1000, "one look proves nothing, again"


def test_a_limit_that_does_not_help_is_raised_further_and_then_set_back(stage):
    """A partition that stands still for a further patience has a larger window: the limit is doubled again."""
    stage.group.waiting = {1: 7}
    stage.wait(3)
    assert stage.group.locks == 4000
    stage.group.waiting = {1: 9000}
    stage.wait(1)
    assert stage.group.locks == 1000


def test_a_limit_that_another_consumer_has_just_raised_is_given_time(stage):
    """Of many consumers that see the same, one raises the limit."""
    stage.group.waiting = {0: 7}
    stage.wait()
    stage.group.locks = 2000
    stage.wait()
    assert stage.group.locks == 2000
    stage.wait()
    assert stage.group.locks == 4000, "it did not help"


def test_a_consumer_with_messages_of_each_partition_asks_nothing(stage):
    """While messages of all its partitions come, a consumer asks the brokers nothing."""
    stage.source.partitions = frozenset((0,))
    for _ in range(5):
        stage.now_s += PATIENCE_S
        stage.message()
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
    assert "raise share.partition.max.record.locks of the share group above 1000: GROUP_AUTH" in caplog.text
    stage.group.fault = None
    stage.wait(1)
    assert stage.group.locks == 2000


def test_a_consumer_that_ends_sets_its_raised_limit_back(stage, caplog):
    """The next one could not know that it was raised; where Kafka refuses, the log has the remedy."""
    stage.group.waiting = {1: 7}
    stage.wait(2)
    assert stage.group.locks == 2000
    stage.guard.close()
    assert stage.group.locks == 1000
    stage.guard.close()
    again = Stage()
    again.group.waiting = {1: 7}
    again.wait(2)
    again.group.fault = Stop("no right")
    again.guard.close()
    assert "stays raised; sowstream topics apply sets it: no right" in caplog.text


def test_a_consumer_that_ends_during_a_look_sets_the_limit_back_after_it():
    """The look goes on beside the consumer's thread, and may raise the limit after the end."""
    looks = []
    stage = Stage()
    stage.guard._run = looks.append
    stage.group.waiting = {1: 7}
    for _ in range(2):
        stage.wait()
        if len(looks) == 2:
            stage.guard.close()
        looks[-1]()
    assert (len(looks), stage.group.locks) == (2, 1000)
