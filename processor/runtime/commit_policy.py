"""When to commit: soon while little comes, seldom while much does."""

from __future__ import annotations

import math
from typing import Final

SPACING_S: Final = 0.025
"""Least time from a commit to one that the clock asks for. With 6,500 deliveries a second, on two cores that the broker
has its share of, it halves the number of commits and saves a fifth of what the broker uses."""


class CommitPolicy:
    """Decides from what it is told; it reads no clock.

    A transaction costs tens of milliseconds however much is in it. A thread that mostly waits for input commits as
    soon as the input runs dry, which keeps latency near the cost of a commit. One that mostly works lets the
    transaction grow up to the interval, which keeps that cost small. What was done because the clock asked for it is
    committed as soon as the input runs dry, whatever else there is to do, but not more often than a broker likes: what
    the clock asks for comes in drops, and each would have a transaction of its own.
    """

    def __init__(self, *, interval_s: float, records_max: int) -> None:
        self._interval_s = interval_s
        self._records_max = records_max
        self._urgent_from_s = 0.0
        self._records = 0
        self._first_s: float | None = None
        self._worked_s = 0.0
        self._is_urgent = False

    def worked(self, now_s: float, seconds: float, records: int, *, is_urgent: bool = False) -> None:
        """Something was done that wants to be committed.

        Args:
            now_s: when it ended.
            seconds: how long it took.
            records: how many records it was for.
            is_urgent: whether the clock asked for it.
        """
        self._is_urgent = self._is_urgent or is_urgent
        if self._first_s is None:
            self._first_s = now_s - seconds
        self._worked_s += seconds
        self._records += records

    def due(self, now_s: float, *, drained: bool) -> bool:
        """Whether to commit now; `drained` says that no further input was waiting."""
        if self._first_s is None:
            return False
        open_s = now_s - self._first_s
        if open_s >= self._interval_s or self._records >= self._records_max:
            return True
        return drained and (self.rest_s(now_s) <= 0 if self._is_urgent else self._worked_s * 2 <= open_s)

    def rest_s(self, now_s: float) -> float:
        """How long a thread without input may sleep, as far as commits are concerned: until an urgent one is due."""
        return max(0.0, self._urgent_from_s - now_s) if self._is_urgent else math.inf

    def committed(self, now_s: float) -> None:
        """A transaction was committed at this time: begin anew."""
        self.emptied()
        self._urgent_from_s = now_s + min(SPACING_S, self._interval_s)

    def emptied(self) -> None:
        """There is nothing to commit: all that was done came to nothing, or is forgotten. Begin anew."""
        self._records, self._first_s, self._worked_s, self._is_urgent = 0, None, 0.0, False
