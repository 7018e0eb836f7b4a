"""A snapshot of all values that the display shows, independent of their source."""

from __future__ import annotations

import time
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.trial.demo.settings import CONFLATED, TOPICS, VIEW
from processor.trial.demo.watcher import OrderStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.trial.demo.watcher import Observations, Watcher

_RATE_WINDOW_S: Final = 3.0
_HISTORY_S: Final = 36
"""Seconds of the small curves."""


class MergedFigures(NamedTuple):
    """The figures of one SOW topic."""

    name: str
    in_per_s: float
    out_per_s: float
    sow_bytes: int
    """Bytes of all records on the SOW topic."""
    delta_bytes: int
    """Bytes of all records on the delta topic."""
    merged: int
    """The number of deltas received."""
    rejected: int
    lag: int
    """Records published but neither merged nor rejected yet, as a subscriber sees it."""

    @property
    def saved(self) -> float:
        """The share of bytes that a subscriber of deltas does not receive."""
        return 1 - self.delta_bytes / self.sow_bytes if self.sow_bytes else 0.0


class ConflatedFigures(NamedTuple):
    """The figures of one conflated topic."""

    name: str
    interval_s: float
    in_per_s: float
    out_per_s: float
    taken: int
    """Updates of the underlying topic."""
    delivered: int
    """Updates of the conflated topic."""
    late_ms: Sequence[float | None]
    """The delay from the end of a key's interval until a subscriber receives the update: median, 99th percentile and
    maximum since the feeds began."""

    @property
    def ratio(self) -> float:
        """The number of updates conflated into one."""
        return self.taken / self.delivered if self.delivered else 0.0


class Picture(NamedTuple):
    """The values to show."""

    merged: list[MergedFigures]
    conflated: list[ConflatedFigures]
    p50_ms: float | None
    """Median latency of the last ten seconds, from publishing until a subscriber receives the committed delta."""
    p99_ms: float | None
    latencies_ms: list[float | None]
    """The median latency of each second."""
    lags: list[float | None]
    """The lag of all topics in each second."""
    prices: list[dict[str, Any]]
    """A few prices."""
    order: str | None
    """The key of the order that is followed."""
    steps: list[OrderStep]
    """Its changes so far."""
    open_orders: Mapping[str, int] = MappingProxyType({})
    """The number of open orders of each customer, from the view."""

    @property
    def lag(self) -> int:
        """Records published but not finished, of all topics."""
        return sum(topic.lag for topic in self.merged)


class Camera:
    """Takes pictures of the watcher's counts; computes rates from successive ones."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._latencies_ms: deque[float | None] = deque(maxlen=_HISTORY_S)
        self._lags: deque[float | None] = deque(maxlen=_HISTORY_S)
        self._history_s = 0.0

    def take(self, sent: Mapping[str, int]) -> Picture:
        """The current picture.

        Args:
            sent: the number of records that each feed has published.
        """
        now_s = time.time()
        with self._watcher.lock:
            seen = self._watcher.seen
            counts = {name: count.records for name, count in seen.counts.items()} | {
                f"{name}.publish": count for name, count in sent.items()
            }
            rates = self._rates(now_s, counts)
            merged = [_merged(name, counts, rates, seen) for name in TOPICS]
            p50_ms, p99_ms = seen.latency.recent_ms(now_s, 0.5, 0.99)
            [last_second_ms] = seen.latency.recent_ms(now_s, 0.5, seconds=1)
            conflated = [_conflated(name, counts, rates, seen) for name in CONFLATED]
            prices = [price for _, (_, price) in sorted(seen.received["prices"].sow.items())]
            open_orders = {customer: row["orders"] for customer, (_, row) in sorted(seen.received[VIEW].sow.items())}
            order, steps = seen.follow.key, seen.follow.steps
        if now_s - self._history_s >= 1.0:
            self._history_s = now_s
            self._latencies_ms.append(last_second_ms)
            self._lags.append(float(sum(topic.lag for topic in merged)))
        latencies_ms, lags = [*self._latencies_ms], [*self._lags]
        return Picture(merged, conflated, p50_ms, p99_ms, latencies_ms, lags, prices, order, steps, open_orders)

    def _rates(self, now_s: float, counts: dict[str, int]) -> dict[str, float]:
        """Records per second over the last few seconds."""
        self._samples.append((now_s, counts))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - _RATE_WINDOW_S:
            self._samples.popleft()
        then_s, before = self._samples[0]
        passed_s = max(now_s - then_s, 0.001)
        return {name: (count - before.get(name, 0)) / passed_s for name, count in counts.items()}


def _merged(name: str, counts: dict[str, int], rates: dict[str, float], seen: Observations) -> MergedFigures:
    merged, rejected = counts[f"{name}.delta"], counts[f"{name}.dlq"]
    return MergedFigures(
        name,
        rates[f"{name}.publish"],
        rates[f"{name}.delta"],
        seen.counts[f"{name}.sow"].size_bytes,
        seen.counts[f"{name}.delta"].size_bytes,
        merged,
        rejected,
        max(0, counts[f"{name}.publish"] - merged - rejected),
    )


def _conflated(name: str, counts: dict[str, int], rates: dict[str, float], seen: Observations) -> ConflatedFigures:
    underlying, interval_s = CONFLATED[name]
    return ConflatedFigures(
        name,
        interval_s,
        rates[f"{underlying}.sow"],
        rates[f"{name}.sow"],
        counts[f"{underlying}.sow"],
        counts[f"{name}.sow"],
        seen.late[name].all_ms(0.5, 0.99, 1.0),
    )
