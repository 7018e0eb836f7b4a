"""The partitions of a thread that are held: why, where they stand, and when each is asked again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from processor.shared_topics.control.hold import Hold, Resume

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.errors import PartitionHeld

__all__ = ["FIRST_PAUSE_S", "PAUSE_MAX_S", "Hold", "Holds", "Resume"]

FIRST_PAUSE_S: Final = 1.0
"""Time until a partition that was just held is asked again."""
PAUSE_MAX_S: Final = 300.0
"""Longest time between two tries; each is twice as long as the one before."""


class Holds:
    """The held partitions of one thread. One thread only.

    A partition that is asked again and gets no further is held for twice as long. One that has committed anything
    begins anew: `released` forgets it.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, now_ms: Callable[[], int] | None = None) -> None:
        """Hold nothing.

        Args:
            clock_s: a clock that does not jump, in seconds.
            now_ms: the wall clock, milliseconds since the epoch; None: the system's.
        """
        self._clock_s = clock_s
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._holds: dict[int, Hold] = {}
        self._asked: set[int] = set()  # Those asked again and not yet known to get further.

    def add(self, partition: int, error: PartitionHeld, offset: int) -> Hold:
        """Hold a partition; for twice as long as the last time if it has got no further since."""
        before = self._holds.get(partition)
        self._asked.discard(partition)
        tries = 0 if before is None else before.tries + 1
        since_ms = self._now_ms() if before is None else before.since_ms
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(tries, 16), PAUSE_MAX_S)
        hold = Hold(error.reason, str(error), offset, since_ms, tries, self._clock_s() + pause_s)
        self._holds[partition] = hold
        return hold

    def take_due(self) -> list[int]:
        """The partitions to be asked again now; they are not held any more, but remembered."""
        now_s = self._clock_s()
        due = [partition for partition, hold in self.held.items() if hold.due_s <= now_s]
        self._asked.update(due)
        return due

    def ask_now(self, partition: int | None) -> list[int]:
        """Have a partition, or all, asked again at the next turn; those that are held of them."""
        wanted = [number for number in self.held if partition in (None, number)]
        for number in wanted:
            self._holds[number] = self._holds[number]._replace(due_s=self._clock_s())
        return wanted

    def last(self, partition: int) -> Hold | None:
        """The last hold of a partition that is held or was asked again; None: it is neither."""
        return self._holds.get(partition)

    def released(self, partition: int) -> Hold | None:
        """A partition got further, or has left: forget it. Its last hold, if there was one."""
        self._asked.discard(partition)
        return self._holds.pop(partition, None)

    @property
    def held(self) -> dict[int, Hold]:
        """The partitions that are held now, with why."""
        return {partition: hold for partition, hold in self._holds.items() if partition not in self._asked}

    @property
    def asked(self) -> frozenset[int]:
        """Those asked again, of which nobody knows yet whether they get further."""
        return frozenset(self._asked)
