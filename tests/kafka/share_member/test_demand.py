"""The number of records that each broker is asked for."""

from __future__ import annotations

import pytest

from processor.kafka.share_member.demand import Demand


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The clock."""
    return Clock()


def test_nothing_is_asked_for_while_nobody_waits(clock):
    """A lease begins to run with the fetch, so records are fetched for a caller who waits."""
    demand = Demand(10, clock)
    assert demand.grant(1, [1], 0) is None
    demand.wait_for(1.0)
    assert demand.is_waiting
    demand.satisfied()
    assert demand.grant(1, [1], 0) is None
    demand.wait_for(1.0)
    clock.now_s = 1.5
    assert demand.grant(1, [1], 0) is None, "the caller has gone"


def test_one_broker_is_asked_for_all_and_once_at_a_time(clock):
    """A broker has one fetch at a time, for as many records as may still be held."""
    demand = Demand(10, clock)
    demand.wait_for(1.0)
    grant = demand.grant(1, [1], 4)
    assert grant is not None
    assert grant.records_max == 6
    assert demand.grant(1, [1], 4) is None
    demand.returned(1)
    assert demand.grant(1, [1], 10) is None, "as many as allowed are held"
    assert demand.grant(1, [1], 0) is not None


def test_brokers_share_the_demand(clock):
    """All fetches together ask for no more than may be held."""
    demand = Demand(10, clock)
    demand.wait_for(1.0)
    grants = [demand.grant(node, [1, 2, 3], 0) for node in (1, 2, 3)]
    numbers = [grant.records_max for grant in grants if grant is not None]
    assert len(numbers) == 3
    assert sum(numbers) <= 10


def test_brokers_take_turns_for_one_record(clock):
    """Where fewer records are wanted than there are brokers, each broker has its turn."""
    demand = Demand(1, clock)
    demand.wait_for(100.0)
    asked = []
    for _ in range(6):
        for node in (1, 2, 3):
            if demand.grant(node, [1, 2, 3], 0) is not None:
                asked.append(node)
                demand.returned(node)
                break
    assert sorted(asked) == [1, 1, 2, 2, 3, 3]
