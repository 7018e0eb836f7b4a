"""What is asked for, and about how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]

GUARANTEES: Final[tuple[Guarantee, ...]] = ("exactly_once", "at_least_once")

# Of two processors that the broker shares; a guess until the first round has told.
_BROKER_S: Final = 8.0
_LOADED_PER_S: Final = 80_000
_PASSED_PER_S: Final = 200_000
_MERGED_PER_S: Final = 70_000
_START_S: Final = 4.0
"""For a program to start, join its group and end."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What can be asked for."""

    records: int
    """Input records of each round."""
    keys: int
    """How many keys they have, at most."""
    rounds: int
    """How often everything is measured."""
    rate: float
    """Records a second at which latency is measured."""
    latency_records: int
    """Records whose latency is measured, under each guarantee; 0: of none."""
    kafka: Mapping[str, str] | None = None
    """How to reach a Kafka that is there already; None: one of our own."""


def round_s(options: BenchOptions) -> float:
    """About how long a round takes."""
    each_s = 1 / _LOADED_PER_S + 1 / _PASSED_PER_S + 1 / _MERGED_PER_S
    return 2 * _START_S + options.records * each_s


def latency_s(options: BenchOptions) -> float:
    """About how long it takes to measure latency."""
    if not options.latency_records:
        return 0.0
    return len(GUARANTEES) * (_START_S + 1.2 * options.latency_records / options.rate)


def whole_s(options: BenchOptions) -> float:
    """About how long all of it takes."""
    own_s = _BROKER_S if options.kafka is None else 0.0
    return own_s + options.rounds * round_s(options) + latency_s(options)


def about(seconds: float) -> str:
    """A time as people say it: `20 seconds`, `a minute and a half`, `3 minutes`."""
    if seconds < 55:
        return f"{max(10, round(seconds / 10) * 10)} seconds"
    if seconds < 105:
        return "a minute" if seconds < 75 else "a minute and a half"
    return f"{round(seconds / 60)} minutes"
