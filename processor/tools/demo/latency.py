"""Latencies counted in buckets, in bounded memory: recent ones for the display, all of them for the summary."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_GROWTH: Final = 1.05  # The error of a quantile is at most 5 %.
_BUCKETS: Final = 1 + math.ceil(math.log(120_000) / math.log(_GROWTH))  # Up to two minutes.
_RECENT_S: Final = 10


class Latency:
    """A histogram of milliseconds. One thread adds; other threads read under the lock of that thread."""

    def __init__(self) -> None:
        self._all = [0] * _BUCKETS
        self._recent: deque[tuple[int, list[int]]] = deque()

    def add(self, now_s: float, milliseconds: float) -> None:
        """Count one latency, measured now."""
        at = 0 if milliseconds <= 1 else min(_BUCKETS - 1, math.ceil(math.log(milliseconds) / math.log(_GROWTH)))
        second = int(now_s)
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append((second, [0] * _BUCKETS))
            self._forget(second)
        self._recent[-1][1][at] += 1
        self._all[at] += 1

    def recent_ms(self, now_s: float, *shares: float) -> list[float | None]:
        """Quantiles of the last ten seconds; None without values."""
        self._forget(int(now_s))
        return _quantiles([counts for _, counts in self._recent], shares)

    def last_second_ms(self, now_s: float, share: float) -> float | None:
        """A quantile of the last full second."""
        return _quantiles([counts for second, counts in self._recent if second == int(now_s) - 1], [share])[0]

    def all_ms(self, *shares: float) -> list[float | None]:
        """Quantiles of all values."""
        return _quantiles([self._all], shares)

    def _forget(self, second: int) -> None:
        while self._recent and self._recent[0][0] <= second - _RECENT_S:
            self._recent.popleft()


def _quantiles(many: list[list[int]], shares: Iterable[float]) -> list[float | None]:
    counts = [sum(bucket) for bucket in zip(*many, strict=True)]
    return [_quantile(counts, share) for share in shares]


def _quantile(counts: list[int], share: float) -> float | None:
    """The upper end of the bucket that contains the quantile."""
    rank = share * sum(counts)
    if not rank:
        return None
    seen = 0
    for at, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return _GROWTH**at
    return None
