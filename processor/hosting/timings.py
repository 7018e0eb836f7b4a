"""A histogram of durations whose observations have a weight, for thousands at a time."""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class Timings(Collector):
    """A histogram of the metrics registry, by processor and name."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, str]) -> None:
        self.name = name
        self.labels = labels
        self._documentation = documentation
        self._lock = threading.Lock()  # Metrics are served by a thread of their own.
        self._timings: dict[tuple[str, str], Timing] = {}

    def add(self, processor: str, observed: Mapping[str, Timing]) -> None:
        """Add the observations of a processor, by name."""
        with self._lock:
            for name, timing in observed.items():
                self._timings.setdefault((processor, name), Timing()).include(timing)

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """Yield the name alone; the registry calls it at the registration."""
        yield HistogramMetricFamily(self.name, self._documentation, labels=self.labels)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Yield the histogram with its present counts."""
        family = HistogramMetricFamily(self.name, self._documentation, labels=self.labels)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        with self._lock:
            for labels, timing in self._timings.items():
                buckets = list(zip(bounds, map(float, accumulate(timing.counts)), strict=True))
                family.add_metric(labels, buckets, timing.seconds)
        yield family
