"""The options of a benchmark, and its expected duration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]

GUARANTEES: Final[tuple[Guarantee, ...]] = ("exactly_once", "at_least_once")

# For two processors shared with the broker; a guess until the first round was measured.
_BROKER_S: Final = 8.0
_LOADED_PER_S: Final = 80_000
_PASSED_PER_S: Final = 200_000
_MERGED_PER_S: Final = 70_000
_START_S: Final = 4.0
"""Time for a program to start, join its group and end."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of a benchmark."""

    records: int
    """Input records of each round."""
    keys: int
    """The maximum number of keys."""
    rounds: int
    """Number of times everything is measured."""
    rate: float
    """Records per second at which latency is measured."""
    latency_records: int
    """Records whose latency is measured under each guarantee; 0 to skip latency."""
    kafka: Mapping[str, str] | None = None
    """The properties of an existing Kafka; None: an embedded one."""


def round_s(options: BenchOptions) -> float:
    """The expected duration of a round."""
    each_s = 1 / _LOADED_PER_S + 1 / _PASSED_PER_S + 1 / _MERGED_PER_S
    return 2 * _START_S + options.records * each_s


def latency_s(options: BenchOptions) -> float:
    """The expected duration of measuring latency."""
    if not options.latency_records:
        return 0.0
    return len(GUARANTEES) * (_START_S + 1.2 * options.latency_records / options.rate)


def whole_s(options: BenchOptions) -> float:
    """The expected duration of everything."""
    own_s = _BROKER_S if options.kafka is None else 0.0
    return own_s + options.rounds * round_s(options) + latency_s(options)


def about(seconds: float) -> str:
    """A duration in words: `20 seconds`, `a minute and a half`, `3 minutes`."""
    if seconds < 55:
        return f"{max(10, round(seconds / 10) * 10)} seconds"
    if seconds < 105:
        return "a minute" if seconds < 75 else "a minute and a half"
    return f"{round(seconds / 60)} minutes"
