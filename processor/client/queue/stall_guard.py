"""Frees a partition that Kafka has ceased to hand out, after one of its brokers was killed.

Kafka leases at most `share.partition.max.record.locks` offsets of a partition at a time, from the oldest one that is
not acknowledged. After the only broker of a partition was killed under load, Kafka 4.3.1 was seen with a full window,
whose records it gave to no client any more. Nothing is lost. A higher limit freed some of these partitions, not all.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from processor.errors import SowstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from processor.client.queue.backlog import LeaseSource
    from processor.kafka.share_member.lease import Lease, Verdict

log = logging.getLogger(__name__)

LOCKS: Final = "share.partition.max.record.locks"
LOCKS_MAX: Final = 10_000
"""Brokers allow no more: `group.share.max.partition.max.record.locks`, as it is unless an operator sets it."""


class Sight(NamedTuple):
    """A share group as its brokers show it."""

    locks: int
    """The limit in force; 0: this Kafka has none of a group."""
    waiting: Mapping[int, int]
    """By partition with records to hand out: the oldest offset that is not acknowledged."""


class GroupView(Protocol):
    """A share group's positions and its limit."""

    def look(self) -> Sight:
        """Ask the brokers."""

    def raise_to(self, locks: int) -> None:
        """Set the limit."""


class StallGuard:
    """A source of leases that looks after the share group while none come. One thread at a time."""

    def __init__(
        self, source: LeaseSource, group: GroupView, *, patience_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Wrap a source.

        Args:
            source: leases messages.
            group: the share group.
            patience_s: the time without a message between two looks; longer than a lease, as the records that another
                consumer holds come back within one.
            clock_s: a clock that does not jump, in seconds.
        """
        self._source, self._group, self._patience_s, self._clock_s = source, group, patience_s, clock_s
        self._seen: Sight | None = None
        self._since_s = clock_s()
        self._told: str | None = None

    def poll(self, timeout_s: float) -> list[Lease]:
        """Lease the next messages; without any for long, see whether there are some that Kafka does not hand out."""
        leases = self._source.poll(timeout_s)
        if leases:
            self._seen, self._since_s = None, self._clock_s()
        elif self._clock_s() - self._since_s >= self._patience_s:
            self._look()
            self._since_s = self._clock_s()
        return leases

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        """Decide about a message."""
        self._source.settle(lease, verdict)

    def drop(self, lease: Lease) -> None:
        """Forget one whose lease has ended."""
        self._source.drop(lease)

    def send(self) -> None:
        """Send outcomes."""
        self._source.send()

    def close(self) -> None:
        """Leave."""
        self._source.close()

    def _look(self) -> None:
        try:
            seen, before = self._group.look(), self._seen
            self._seen = seen
            # Another consumer may have raised the limit since: this takes a moment to show.
            if before is not None and before.locks == seen.locks:
                stalled = sorted(each for each, start in seen.waiting.items() if before.waiting.get(each) == start)
                if stalled:
                    self._free(seen.locks, stalled)
        except SowstreamError as error:
            log.info("the share group cannot be looked at: %s", error)

    def _free(self, locks: int, stalled: list[int]) -> None:
        wanted = min(2 * locks, LOCKS_MAX)
        text = f"for {self._patience_s:.0f} s Kafka has handed out nothing of partitions {stalled}, where messages wait"
        if wanted <= locks:
            self._tell(f"{text}; restart the brokers that lead them")
            return
        try:
            self._group.raise_to(wanted)
        except SowstreamError as error:
            self._tell(f"{text}; raise {LOCKS} of the share group above {locks}: {error}")
            return
        self._told = None
        log.warning("%s; raised %s of the share group from %d to %d", text, LOCKS, locks, wanted)

    def _tell(self, text: str) -> None:
        """Log a stall once, while it stays as it is."""
        if text != self._told:
            self._told = text
            log.error("%s", text)
