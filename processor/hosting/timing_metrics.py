"""A histogram of durations whose observations have a weight, for thousands at a time."""

from __future__ import annotations

import threading
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from processor.hosting.context import BOUNDS_S, Timing

if TYPE_CHECKING:
    from collections.abc import Iterable


class Timings(Collector):
    """A histogram of the metrics registry, by labels."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.labels = labels
        self._documentation = documentation
        self._lock = threading.Lock()  # Metrics are served by a thread of their own.
        self._timings: dict[tuple[str, ...], Timing] = {}

    def add(self, timing: Timing, *labels: str) -> None:
        """Add observations to the series of these labels."""
        with self._lock:
            self._timings.setdefault(labels, Timing()).include(timing)

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
