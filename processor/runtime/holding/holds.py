"""The holds of a thread: reason, offset and next retry of each held partition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from processor.installation.hold import Hold, Resume

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.errors import PartitionHeld

__all__ = ["FIRST_PAUSE_S", "PAUSE_MAX_S", "Hold", "Holds", "Resume"]

FIRST_PAUSE_S: Final = 1.0
"""Time until the first retry of a held partition."""
PAUSE_MAX_S: Final = 300.0
"""Longest time between two retries; each pause is twice as long as the one before."""

_BY_ORDER_S: Final = 1e9
"""Pause of a partition whose retry may end the process: it waits for an operator's order."""


class Holds:
    """The held partitions of one thread. One thread only.

    A partition without progress after a retry is held for twice as long. After a commit `released` forgets its hold.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, now_ms: Callable[[], int] | None = None) -> None:
        """Begin without held partitions.

        Args:
            clock_s: a clock that does not jump, in seconds.
            now_ms: the wall clock, milliseconds since the epoch; None: the system's.
        """
        self._clock_s = clock_s
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._holds: dict[int, Hold] = {}
        self._asked: set[int] = set()  # Partitions that were retried, without known progress yet.

    def add(self, partition: int, error: PartitionHeld, offset: int) -> Hold:
        """Hold a partition, for twice as long as the last time if it has made no progress since."""
        before = self._holds.get(partition)
        self._asked.discard(partition)
        tries = 0 if before is None else before.tries + 1
        since_ms = self._now_ms() if before is None else before.since_ms
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(tries, 16), PAUSE_MAX_S)
        if error.reason == "stuck":
            pause_s = _BY_ORDER_S
        order_ms = 0 if before is None else before.order_ms
        hold = Hold(error.reason, str(error), offset, since_ms, tries, self._clock_s() + pause_s, order_ms)
        self._holds[partition] = hold
        return hold

    def take_due(self) -> list[int]:
        """Take the partitions to retry now, which are no longer held; their last holds are remembered."""
        now_s = self._clock_s()
        due = [partition for partition, hold in self.held.items() if hold.due_s <= now_s]
        self._asked.update(due)
        return due

    def ask_now(self, partition: int | None, order_ms: int = 0) -> list[int]:
        """Retry a held partition at the next turn, or all for None, by an order of a time; returns their numbers."""
        numbers = [number for number in self.held if partition in (None, number)]
        for number in numbers:
            self._holds[number] = self._holds[number]._replace(due_s=self._clock_s(), order_ms=order_ms)
        return numbers

    def last(self, partition: int) -> Hold | None:
        """The last hold of a partition that is held or was retried; None for other partitions."""
        return self._holds.get(partition)

    def released(self, partition: int) -> Hold | None:
        """Forget a partition that has made progress or has left; returns its last hold, if any."""
        self._asked.discard(partition)
        return self._holds.pop(partition, None)

    @property
    def held(self) -> dict[int, Hold]:
        """The partitions that are held now, with their holds."""
        return {partition: hold for partition, hold in self._holds.items() if partition not in self._asked}

    @property
    def asked(self) -> frozenset[int]:
        """The partitions that were retried, without known progress yet."""
        return frozenset(self._asked)
