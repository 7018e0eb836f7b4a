"""The durations that a processor observed, with a weight, for thousands at a time."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 6.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0,
)  # fmt: skip


class Timing:
    """The observations of one name. No lock: one thread only."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """The number of durations up to the bound of this index, and above the bound before it."""
        self.seconds = 0.0
        """The sum of all durations."""

    def add(self, seconds: float, times: int) -> None:
        """Add a duration, so many times; a negative one, of a clock that was set back, counts as none."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.seconds += seconds * times

    def include(self, other: Timing) -> None:
        """Add all observations of another timing."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds

    @property
    def times(self) -> int:
        """The number of observations."""
        return sum(self.counts)
