"""Decides how a transaction that stands open in a partition must end, or that the end cannot be known.

::

    coordinator                       partition                     here
    PrepareCommit, later another …    records, no marker            commit: the input offsets are committed
    PrepareAbort, later another …     records, no marker            abort: the worker did it again
    Ongoing, or about to end it       records                       refuse: Kafka ends it
    nothing about these records       records, no marker            refuse: the outcome is unknown

The coordinator's decision comes from its own log. Its answer to a request is not enough: it is about the last
transaction of a transactional id only, and a worker that came back has had others since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.transactions.transaction_admin import CoordinatorState, Marker, OpenProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.kafka.transactions.open_ranges import OpenRange
    from processor.kafka.transactions.transaction_log import Decision

CLOCKS_MS: Final = 5_000
"""Largest difference between the clocks of a producer and of the brokers. A decision that is older than the first open
record by more than this was about another transaction; a clock that is further ahead leads to a refusal, never to a
wrong end.
"""


class Verdict(NamedTuple):
    """The decision for a transaction in one partition."""

    marker: Marker | None
    """The record that ends it; None: it must not be touched."""
    why: str
    """The reason, and the remedy if it must not be touched: a clause for people."""
    needs_idle: bool = False
    """True if it may be ended only while its producer does not run: no later incarnation has fenced it."""


def decide(
    open_range: OpenRange,
    producer: OpenProducer,
    state: CoordinatorState | None,
    decisions: Iterable[Decision],
    *,
    are_done_once: Callable[[], bool] = lambda: False,
) -> Verdict:
    """Decide how an open transaction must end.

    Args:
        open_range: the records after the partition's last stable offset.
        producer: the owner of the transaction, as the partition's leader knows it.
        state: the coordinator's present state of the transactional id; None: no coordinator knows the producer.
        decisions: the decisions about the transactional id in the coordinator's log.
        are_done_once: whether it is certain that none of the open records was rolled back and repeated; called if an
            abort came shortly before the last decision, as it may have been about the first of the records.
    """
    place = open_range.topic, open_range.partition
    if state is None:
        return Verdict(
            None,
            "no coordinator knows its producer any more, so whether it was committed is not known; compare the group's "
            "position with the input before you end it with Kafka's kafka-transactions",
        )
    if place in state.places:
        return Verdict(None, _still_open(state))
    if state.producer_id != producer.producer_id or state.epoch < producer.epoch:
        return Verdict(
            None,
            f"the coordinator knows its transactional id as producer {state.producer_id}, epoch {state.epoch}: "
            "another one than wrote here; nothing is known of its end",
        )
    since_ms = open_range.since_ms if open_range.begin == producer.begin else producer.last_ms
    about_it = [
        decision
        for decision in decisions
        if decision.producer_id == producer.producer_id
        and decision.epoch == producer.epoch
        and place in decision.places
        and decision.decided_ms >= since_ms - CLOCKS_MS
    ]
    if not about_it:
        return Verdict(
            None,
            "the coordinator's log has no decision about it: it was never decided, or is too long ago; nothing is "
            "known of its end",
        )
    if len({decision.is_commit for decision in about_it}) > 1 and not are_done_once():
        return Verdict(
            None,
            "the coordinator's log has a commit and an abort that may both be about it; nothing is known of its end",
        )
    last = about_it[-1]
    marker = Marker(
        *place,
        producer.producer_id,
        last.marker_epoch,
        max(0, producer.coordinator_epoch),
        last.transaction_version,
        last.is_commit,
    )
    word = "committed" if last.is_commit else "rolled back"
    return Verdict(
        marker, f"the coordinator's log says that it was {word}", needs_idle=state.epoch <= last.marker_epoch
    )


def _still_open(state: CoordinatorState) -> str:
    if state.state == "Ongoing":
        return (
            "its transactional id has a transaction open that this partition belongs to; Kafka ends it within "
            f"{state.timeout_ms / 1000:g} s of its beginning: look again then"
        )
    return (
        f"its coordinator is about to end it ({state.state}); look again in a minute. If it stays so, restart the "
        "broker that has the transactional id's partition of __transaction_state"
    )
