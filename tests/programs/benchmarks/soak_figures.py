"""Summarises the samples of a soak: medians of the quarters, and whether memory and lag remained constant."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

QUARTERS = 4


class Sample(NamedTuple):
    """One sample of the worker."""

    at_s: float
    """Time since the load began."""
    resident_mb: float
    lag_records: float
    """Number of records published and not yet committed by the worker's group."""
    consumed: float
    """Number of input records consumed since the load began."""


def quarters(samples: Sequence[Sample], field: str) -> list[float]:
    """The medians of a field in each quarter of the samples.

    Raises:
        ValueError: there are fewer samples than quarters.
    """
    if len(samples) < QUARTERS:
        raise ValueError(f"{len(samples)} samples are too few for quarters: soak longer")
    edges = [len(samples) * number // QUARTERS for number in range(QUARTERS + 1)]
    return [
        statistics.median(getattr(sample, field) for sample in samples[begin:end]) for begin, end in pairwise(edges)
    ]


def summary(samples: Sequence[Sample], *, rate: float, peak: float) -> dict[str, float]:
    """The soak in one row: as caches fill in the first quarter, the last is compared with the second.

    Args:
        samples: the samples in order of time.
        rate: published records per second.
        peak: records per second at the worker's peak.
    """
    memory, lag = quarters(samples, "resident_mb"), quarters(samples, "lag_records")
    first, last = samples[0], samples[-1]
    return {
        "minutes": last.at_s / 60,
        "rate": rate,
        "peak": peak,
        "taken_per_s": (last.consumed - first.consumed) / (last.at_s - first.at_s),
        **{f"resident_mb_{number}": value for number, value in enumerate(memory, 1)},
        **{f"lag_records_{number}": value for number, value in enumerate(lag, 1)},
        "memory_growth": memory[-1] / memory[1],
        "resident_mb_most": max(sample.resident_mb for sample in samples),
        "lag_s_most": max(sample.lag_records for sample in samples) / rate,
        "lag_s_last": lag[-1] / rate,
    }
