"""When a held partition is asked again, and what of it is remembered."""

from __future__ import annotations

from processor.errors import PartitionHeld
from processor.runtime.holding.holds import PAUSE_MAX_S, Holds


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


def error(text: str = "no") -> PartitionHeld:
    """Why a partition is held."""
    return PartitionHeld("registry", text)


def test_each_pause_is_twice_as_long_up_to_five_minutes():
    """A partition that gets no further is asked after 1, 2, 4 ... 300 s."""
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


def test_one_that_is_being_asked_is_not_held_and_not_forgotten():
    """Only once it has got further it begins with a pause of a second again."""
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
    assert holds.add(3, error(), 41)[4:] == (0, clock.now_s + 1)


def test_it_is_held_since_the_first_time():
    """However often it was asked again, and whatever it said then."""
    times_ms = iter((5, 6, 7))
    holds = Holds(Clock(), lambda: next(times_ms))
    holds.add(3, error("no"), 40)
    again = holds.add(3, error("never"), 40)
    assert (again.since_ms, again.message) == (5, "never")


def test_an_order_is_obeyed_at_once():
    """For one partition or for all; those that are not held are left alone."""
    clock = Clock()
    holds = Holds(clock)
    for partition in (1, 2):
        holds.add(partition, error(), 0)
    assert holds.ask_now(9) == []
    assert holds.ask_now(2) == [2]
    assert holds.take_due() == [2]
    assert holds.ask_now(None) == [1]
    assert holds.take_due() == [1]
