"""Figures of a run, and their statistics: medians, ratios per round, percentiles."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Figure(NamedTuple):
    """The figures of one run of one program."""

    records_per_s: float
    """Input records per second, from the first one read until all are finished."""
    cpu_s_per_million: float
    """User and system seconds of its process in that time, per million input records."""


class Spread(NamedTuple):
    """The spread of a figure over all rounds."""

    median: float
    """The median."""
    least: float
    """The lowest value."""
    most: float
    """The highest value."""


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[Figure], theirs: Sequence[Figure]) -> list[float]:
    """The ratios of two programs' rates, per round: a disturbance of a whole round affects both."""
    return [one.records_per_s / other.records_per_s for one, other in zip(ours, theirs, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that is not below this share of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
