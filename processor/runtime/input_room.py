"""How much longer Kafka keeps what a partition has not processed yet: told of topics, asked for partitions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_kept_ms: dict[str, float] = {}  # By topic: a process has one cluster. Written by the watch, read by the threads.


def tell(topic: str, kept_ms: int | None) -> None:
    """How long a topic keeps each record, in milliseconds; None: for ever."""
    _kept_ms[topic] = math.inf if kept_ms is None else float(kept_ms)


def of(topic: str, lags: Mapping[int, int], times_ms: Mapping[int, int], now_ms: int) -> dict[int, float]:
    """Seconds until Kafka may delete or compact what comes next, for each partition of which that is known.

    Rather too few than too many: the next record is as old as the last one, or younger. Below nought some may be gone.

    Args:
        topic: the input.
        lags: how many records wait.
        times_ms: timestamps of the last records processed; 0 before the first.
        now_ms: the clock.
    """
    kept_ms = _kept_ms.get(topic)
    if kept_ms is None:
        return {}
    return {
        partition: (kept_ms - max(0, now_ms - times_ms[partition] if lag else 0)) / 1000
        for partition, lag in lags.items()
        if not lag or times_ms[partition]
    }
