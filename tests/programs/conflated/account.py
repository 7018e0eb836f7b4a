"""Adds up the evidence of a run, and lists the broken promises."""

from __future__ import annotations

import gc
import multiprocessing
import os
from array import array
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.programs.conflated.checks import CHECKS, hidden, lateness_ms
from tests.programs.conflated.evidence import gather
from tests.programs.faults.examine import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.programs.conflated.evidence import Evidence, Place


class Bounds(NamedTuple):
    """Limits of a delivery's delay after the end of its interval; None: the delay is reported, and not limited."""

    p99_ms: float | None = None
    """For 99 of 100 deliveries."""
    max_ms: float | None = None
    """For every delivery."""


@dataclass
class Account:
    """The figures of a run, to which partitions are added one after the other; their evidence need not be kept."""

    interval_ms: int
    warm_up_s: float = 0
    """Time at the start whose deliveries are left out of the delays."""
    updates: int = 0
    keys: int = 0
    deliveries: int = 0
    hidden: int = 0
    at_once: int = 0
    deletes: int = 0
    lateness_ms: array[float] = field(default_factory=lambda: array("d"))
    complaints: Complaints = field(default_factory=Complaints)

    def add(self, evidence: Evidence) -> None:
        """Check the evidence of a partition, and add its figures."""
        for check in CHECKS:
            check(evidence, self.interval_ms, self.complaints)
        self.updates += sum(map(len, evidence.updates.values()))
        self.keys += len(evidence.updates)
        self.hidden += hidden(evidence)
        for deliveries in evidence.sow.values():
            self.deliveries += len(deliveries)
            self.at_once += sum(delivery.is_at_once for delivery in deliveries)
            self.deletes += sum(delivery.is_delete for delivery in deliveries)
        self.lateness_ms.extend(lateness_ms(evidence, self.interval_ms, self.warm_up_s))

    def include(self, other: Account) -> None:
        """Add the figures of another account, of other partitions."""
        self.updates += other.updates
        self.keys += other.keys
        self.deliveries += other.deliveries
        self.hidden += other.hidden
        self.at_once += other.at_once
        self.deletes += other.deletes
        self.lateness_ms.extend(other.lateness_ms)
        self.complaints.include(other.complaints)

    def close(self, bounds: Bounds) -> None:
        """Run the checks that need the figures of all partitions."""
        self.lateness_ms = array("d", sorted(self.lateness_ms))
        for name, bound_ms, found_ms in (
            ("p99", bounds.p99_ms, self.at(0.99)),
            ("max", bounds.max_ms, self.at(1)),
        ):
            if bound_ms is not None and found_ms >= bound_ms:
                self.complaints.add("too late", f"{name} {found_ms:.0f} ms, and it is to be below {bound_ms:.0f}")
        happened = {
            "update was folded": self.deliveries * 1.5 < self.updates,
            "life was too short to tell": self.hidden > 0,
            "update was delivered at once": self.at_once > 0,
            "delete was delivered": self.deletes > 0,
        }
        for what, has_happened in happened.items():
            if not has_happened:
                self.complaints.add("proves nothing", f"no {what}")

    def at(self, part: float) -> float:
        """The quantile of the delays, in milliseconds; call it when the account is closed."""
        return self.lateness_ms[min(len(self.lateness_ms) - 1, int(len(self.lateness_ms) * part))]

    def __str__(self) -> str:
        return (
            f"{self.updates:,} updates of {self.keys:,} keys; {self.deliveries:,} deliveries, "
            f"one of {self.updates / max(1, self.deliveries):.1f}; {self.deletes:,} deletes, {self.at_once:,} at once, "
            f"{self.hidden:,} updates in lives too short to tell\n"
            f"after the interval's end: p50 {self.at(0.5):.0f} ms, p99 {self.at(0.99):.0f} ms, max {self.at(1):.0f} ms"
        )


def add_up(places: Sequence[Place], interval_ms: int, warm_up_s: float, report: Callable[[str], None]) -> Account:
    """The account of all the partitions, which is not closed yet, with a process for each processor."""
    account = Account(interval_ms, warm_up_s)
    processes = min(len(places), os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")  # A fork would copy Kafka clients in an inconsistent state.
    with ProcessPoolExecutor(processes, spawn) as pool:
        asked = {pool.submit(_added, place, interval_ms, warm_up_s): place for place in places}
        for done in as_completed(asked):
            account.include(done.result())
            report(f"  added up partition {asked[done].partition}: {account.updates:,} updates so far")
    return account


def _added(place: Place, interval_ms: int, warm_up_s: float) -> Account:
    """The account of one partition."""
    gc.disable()  # Millions of updates are scanned repeatedly, and none is part of a reference cycle.
    account = Account(interval_ms, warm_up_s)
    account.add(gather(place))
    return account
