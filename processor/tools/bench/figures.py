"""What is measured, and what is made of it: medians, ratios round by round, percentiles."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Figure(NamedTuple):
    """One run of one program."""

    records_per_s: float
    """Input records, from the first one taken until all are done."""
    cpu_s_per_million: float
    """User and system seconds of its process meanwhile, for a million input records."""


class Spread(NamedTuple):
    """A figure over all rounds."""

    median: float
    """Half of the rounds are above."""
    least: float
    """The lowest of them."""
    most: float
    """The highest."""


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[Figure], theirs: Sequence[Figure]) -> list[float]:
    """How many times as fast, round by round: what disturbed a whole round has disturbed both."""
    return [one.records_per_s / other.records_per_s for one, other in zip(ours, theirs, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of at least one value is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
