"""Leases and outcomes of a member, from the fetch to the broker's answer."""

from __future__ import annotations

import pytest

from processor.queues.transport.leases import GAP, AckBatch, Demand, Lease, LeaseBook, ack_batches
from processor.record import Record

NODE, OTHER = 1, 2


def lease(offset: int, partition: int = 0) -> Lease:
    """A lease of a record."""
    return Lease(partition, Record(b"k", b"v", None, offset, 0), 1, 0.0)


@pytest.fixture
def leases() -> list[Lease]:
    """Three leases of one partition."""
    return [lease(offset) for offset in (5, 6, 7)]


@pytest.fixture
def book(leases: list[Lease]) -> LeaseBook:
    """A book with the three leases."""
    made = LeaseBook()
    made.add(NODE, leases)
    return made


def test_leases_are_taken_in_order_and_held_until_they_are_settled(book, leases):
    """Each is handed out once; those not taken yet are held as well."""
    assert book.take(2) == leases[:2]
    assert (book.held, book.has_ready) == (3, True)
    assert book.settle(leases[0], "accept")
    assert book.held == 2
    assert book.take(10) == leases[2:]
    assert not book.has_ready


def test_outcomes_are_for_the_broker_that_gave_the_leases(book, leases):
    """They are taken once, by partition and offset, with Kafka's codes."""
    second = lease(1, partition=3)
    book.add(OTHER, [second])
    for each, verdict in zip([*leases, second], ("accept", "release", "reject", "accept"), strict=True):
        assert book.settle(each, verdict)
    book.decide_runs(NODE, 0, [(8, 9)], GAP)
    assert book.has_outcomes()
    assert book.outcomes_for(NODE) == {0: {5: 1, 6: 2, 7: 3, 8: 0, 9: 0}}
    assert not book.has_outcomes(NODE)
    assert book.outcomes_for(OTHER) == {3: {1: 1}}
    assert book.outcomes_for(OTHER) == {}


def test_a_second_outcome_is_refused(book, leases):
    """A settled lease is not ours; a release changes nothing for anybody, so it is no loss."""
    book.settle(leases[0], "accept")
    assert not book.settle(leases[0], "accept")
    assert book.settle(leases[0], "release")
    assert book.counts["lost"] == 1


def test_a_lease_of_an_earlier_delivery_settles_nothing(book, leases):
    """A record that was leased again belongs to its new lease."""
    book.end_session(NODE, "gone")
    again = lease(5)
    book.add(NODE, [again])
    assert not book.settle(leases[0], "accept")
    assert book.held == 1
    assert book.settle(again, "accept")


def test_the_end_of_a_session_loses_what_it_gave(book, leases):
    """Accepted records are reported as lost, released ones not; held and ready ones are forgotten; others stay."""
    others = [lease(1, partition=3)]
    book.take(2)
    book.add(OTHER, others)
    book.settle(leases[0], "accept")
    book.settle(leases[1], "release")
    book.end_session(NODE, "the broker is gone")
    assert [(lost.places, lost.reason) for lost in book.take_lost()] == [([(0, 5)], "the broker is gone")]
    assert book.take_lost() == []
    assert not book.has_outcomes()
    assert not book.settle(leases[2], "accept"), "its session has ended"
    assert book.take(10) == others
    assert book.held == 1


def test_one_partition_may_end_alone(book, leases):
    """A partition whose leader moved loses its leases; those of another partition of the broker stay."""
    other = lease(1, partition=3)
    book.add(NODE, [other])
    book.settle(leases[0], "accept")
    book.settle(other, "accept")
    book.end_session(NODE, "moved", 0)
    assert [lost.places for lost in book.take_lost()] == [[(0, 5)]]
    assert book.outcomes_for(NODE) == {3: {1: 1}}


def test_a_dropped_lease_needs_no_outcome(book, leases):
    """A lease that has ended by its time is forgotten, and nothing is sent about it."""
    book.drop(leases[0])
    book.drop(leases[0])
    assert book.held == 2
    assert not book.has_outcomes()


def test_refused_outcomes_are_lost_if_they_were_final(book):
    """Of refused outcomes those of done records are reported; gaps and releases are no loss."""
    book.refused(0, {1: 1, 2: 2, 3: 3, 4: GAP}, "InvalidRecordState")
    assert [lost.places for lost in book.take_lost()] == [[(0, 1), (0, 3)]]


@pytest.mark.parametrize(
    ("outcomes", "batches"),
    [
        ({}, []),
        ({3: 1, 1: 1, 2: 1}, [AckBatch(1, 3, 1)]),
        ({1: 1, 2: 2, 3: 2, 5: 2}, [AckBatch(1, 1, 1), AckBatch(2, 3, 2), AckBatch(5, 5, 2)]),
    ],
)
def test_outcomes_are_sent_as_runs_in_order(outcomes, batches):
    """Brokers take runs of offsets with one outcome, in ascending order."""
    assert ack_batches(outcomes) == batches


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
    demand = Demand(clock)
    assert demand.grant(1, [1], 0) is None
    demand.wait_for(1.0, 10)
    assert demand.is_waiting
    demand.satisfied()
    assert demand.grant(1, [1], 0) is None
    demand.wait_for(1.0, 10)
    clock.now_s = 1.5
    assert demand.grant(1, [1], 0) is None, "the caller has gone"


def test_one_broker_is_asked_for_all_and_once_at_a_time(clock):
    """A broker has one fetch at a time, for as many records as may still be held."""
    demand = Demand(clock)
    demand.wait_for(1.0, 10)
    grant = demand.grant(1, [1], 4)
    assert grant is not None
    assert grant.records_max == 6
    assert demand.grant(1, [1], 4) is None
    demand.returned(1)
    assert demand.grant(1, [1], 10) is None, "as many as allowed are held"
    assert demand.grant(1, [1], 0) is not None


def test_brokers_share_the_demand(clock):
    """All fetches together ask for no more than may be held."""
    demand = Demand(clock)
    demand.wait_for(1.0, 10)
    grants = [demand.grant(node, [1, 2, 3], 0) for node in (1, 2, 3)]
    numbers = [grant.records_max for grant in grants if grant is not None]
    assert len(numbers) == 3
    assert sum(numbers) <= 10


def test_brokers_take_turns_for_one_record(clock):
    """Where fewer records are wanted than there are brokers, each broker has its turn."""
    demand = Demand(clock)
    demand.wait_for(100.0, 1)
    asked = []
    for _ in range(6):
        for node in (1, 2, 3):
            if demand.grant(node, [1, 2, 3], 0) is not None:
                asked.append(node)
                demand.returned(node)
                break
    assert sorted(asked) == [1, 1, 2, 2, 3, 3]


def test_a_broker_without_records_does_not_hold_up_the_next_one(clock):
    """Brokers that take turns wait for no record before each of them was asked, after a record as well."""
    demand = Demand(clock)
    waits = []
    for turn in range(9):
        demand.wait_for(100.0, 1)
        node = 1 + turn % 3
        grant = demand.grant(node, [1, 2, 3], 0)
        assert grant is not None
        waits.append(grant.wait_ms)
        demand.returned(node)
        if turn == 4:
            demand.satisfied()
    assert waits == [0, 0, 50, 50, 50, 0, 0, 50, 50]
