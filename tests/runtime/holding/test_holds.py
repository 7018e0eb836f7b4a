"""Tests of the schedule of retries of held partitions."""

from __future__ import annotations

from processor.errors import PartitionHeld
from processor.runtime.holding.holds import PAUSE_MAX_S, Holds


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


def error(text: str = "no") -> PartitionHeld:
    """Create a reason to hold a partition."""
    return PartitionHeld("registry", text)


def test_each_pause_is_twice_as_long_up_to_five_minutes():
    """A partition without progress is retried after 1, 2, 4 ... 300 s."""
    clock = Clock()
    holds = Holds(clock, lambda: 7)
    pauses_s = []
    for _ in range(11):
        hold = holds.add(3, error(), 40)
        pauses_s.append(hold.due_s - clock.now_s)
        assert holds.take_due() == []
        clock.now_s = hold.due_s
        assert holds.take_due() == [3]
    assert pauses_s == [1, 2, 4, 8, 16, 32, 64, 128, 256, PAUSE_MAX_S, PAUSE_MAX_S]
    assert hold.tries == 10


def test_a_retried_partition_is_not_held_and_not_forgotten():
    """Only progress resets the pause of a retried partition to a second."""
    clock = Clock()
    holds = Holds(clock, lambda: 7)
    holds.add(3, error(), 40)
    clock.now_s += 1
    assert holds.take_due() == [3]
    assert (holds.held, holds.asked) == ({}, {3})
    assert holds.add(3, error(), 40).tries == 1
    clock.now_s += 2
    assert holds.take_due() == [3]
    assert holds.released(3) is not None
    assert holds.released(3) is None
    assert holds.add(3, error(), 41)[4:6] == (0, clock.now_s + 1)


def test_a_hold_keeps_the_time_of_its_first_failure():
    """The start of a hold does not change with retries, or with another reason."""
    times_ms = iter((5, 6, 7))
    holds = Holds(Clock(), lambda: next(times_ms))
    holds.add(3, error("no"), 40)
    again = holds.add(3, error("never"), 40)
    assert (again.since_ms, again.message) == (5, "never")


def test_an_order_is_obeyed_at_once():
    """An order retries one partition or all held ones at once; partitions that are not held are left alone."""
    clock = Clock()
    holds = Holds(clock)
    for partition in (1, 2):
        holds.add(partition, error(), 0)
    assert holds.ask_now(9) == []
    assert holds.ask_now(2) == [2]
    assert holds.take_due() == [2]
    assert holds.ask_now(None) == [1]
    assert holds.take_due() == [1]
