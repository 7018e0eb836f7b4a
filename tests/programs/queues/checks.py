"""Finds the broken promises of a queue in what its consumers received and when."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

SLACK_S = 0.5
"""By so much the times of two processes may be off: a line is written a moment after its event."""
HOLD_SLACK_S = 1.0
"""A message is handled within its lease and this time (issue 25)."""
SHARE_MAX = 1.5
"""The busiest consumer handles at most this multiple of the median."""
SHOWN_MAX = 5


class Delivery(NamedTuple):
    """One delivery of a message to one consumer process; times by the machine's monotonic clock."""

    consumer: str
    """The process: one that is started again is another one."""
    source: str
    """The id of the message."""
    got_s: float
    done_s: float | None = None
    """When it was handled; None: never by this process."""


class Harm(NamedTuple):
    """The faults of a run."""

    consumers: Mapping[str, float] = {}
    """When each consumer was killed."""
    broker: Sequence[float] = ()
    """When the broker was killed."""


def broken_promises(
    expected: Iterable[str], deliveries: Iterable[Delivery], harm: Harm, *, lease_s: float
) -> list[str]:
    """A line for each promise that was broken.

    Args:
        expected: the ids of the committed messages.
        deliveries: all deliveries.
        harm: the faults.
        lease_s: the lease.
    """
    wrong: dict[str, list[str]] = {}
    by_source: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        by_source.setdefault(delivery.source, []).append(delivery)
        if delivery.done_s is not None and delivery.done_s - delivery.got_s > lease_s + HOLD_SLACK_S:
            wrong.setdefault("were held for longer than their lease", []).append(delivery.source)
    for source in expected:
        of_source = sorted(by_source.pop(source, ()), key=lambda one: one.got_s)
        if not any(one.done_s is not None for one in of_source):
            wrong.setdefault("were never handled", []).append(source)
        for first, second in itertools.pairwise(of_source):
            if not _may_come_again(first, second, harm, lease_s):
                wrong.setdefault("came again while their lease and session lasted", []).append(source)
    for source in by_source:
        wrong.setdefault("were delivered though never committed", []).append(source)
    return [f"{len(them)} messages {what}: {', '.join(them[:SHOWN_MAX])}" for what, them in wrong.items()]


def unfair(deliveries: Iterable[Delivery], harm: Harm, consumers: Iterable[str]) -> list[str]:
    """A line if the busiest consumer handled too much, of the consumers that lived throughout."""
    counts = {consumer: 0 for consumer in consumers if consumer not in harm.consumers}
    for delivery in deliveries:
        if delivery.done_s is not None and delivery.consumer in counts:
            counts[delivery.consumer] += 1
    if not counts:
        return []
    busiest, median = max(counts.values()), statistics.median(counts.values())
    return [] if busiest <= SHARE_MAX * median else [f"the busiest consumer handled {busiest}, the median {median:g}"]


def _may_come_again(first: Delivery, second: Delivery, harm: Harm, lease_s: float) -> bool:
    """True if a delivery may follow another one: its lease had ended, or its consumer or the broker had died."""
    if second.got_s >= first.got_s + lease_s - SLACK_S:
        return True
    killed_s = harm.consumers.get(first.consumer)
    if killed_s is not None and killed_s - SLACK_S <= second.got_s:
        return True
    return any(first.got_s - lease_s <= at_s <= second.got_s + SLACK_S for at_s in harm.broker)
