"""The parameters of a run."""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    messages: int = 5_000
    rate: float = 2_000
    """Publications a second."""
    consumers: int = 10
    """Each in a process of its own."""
    workers: int = 2
    max_backlog: int = 100
    lease_s: float = 5.0
    consumer_kills: int = 3
    worker_kills: int = 2
    broker_kills: int = 1
    aborts: int = 5
    """Transactions on the queue's topic that are rolled back."""

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages at {self.rate:,.0f}/s, {self.consumers} consumers, {self.workers} workers; "
            f"kills: {self.consumer_kills} consumers, {self.worker_kills} workers, {self.broker_kills} broker; "
            f"{self.aborts} aborts; lease {self.lease_s:g} s, seed {self.seed}"
        )
