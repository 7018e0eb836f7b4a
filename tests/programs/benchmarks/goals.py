"""The goals of the benchmarks, as ratios of what was measured side by side, and the verdict on each."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Programs: TypeAlias = "Mapping[str, Mapping[str, Any]]"
"""The entry of each program in the suite's file, with `figures` among others."""


class Pair(NamedTuple):
    """The two sides of a ratio. More is better: for times and costs, the rival's figure is the numerator."""

    program: str
    over: str
    under: str
    field: str = "records_per_s"

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{self.program}: {self.over} / {self.under}, {self.field}"


PAIRS = (
    Pair("throughput", "sowstream", "pass-through"),
    Pair("throughput", "sowstream", "Kafka Streams"),
    Pair("throughput", "sowstream", "Quix Streams"),
    Pair("throughput", "Kafka Streams", "sowstream", "cpu_s_per_million"),
    Pair("growth", "keys 1000000", "keys 10000"),
    Pair("growth", "keys 10000000", "keys 10000"),
    Pair("growth", "sizes 10000", "sizes 70"),
    Pair("growth", "partitions 64", "partitions 1"),
    Pair("growth", "held 2", "held 1"),
    Pair("restore", "sowstream", "Kafka Streams"),
    Pair("conflation", "sowstream", "Kafka Streams"),
    Pair("spark", "local[2]", "local[1]"),
)


def series(programs: Programs, program: str, name: str, field: str) -> list[float]:
    """A figure in each round; empty if it was not measured."""
    rounds = programs.get(program, {}).get("figures", {}).get(name, [])
    return [one[field] for one in rounds if field in one]


def of_rounds(programs: Programs, pair: Pair) -> list[float]:
    """The ratio in each round that has both figures."""
    over, under = (series(programs, pair.program, name, pair.field) for name in (pair.over, pair.under))
    return [one / other for one, other in zip(over, under, strict=False) if other]


def middle(values: list[float]) -> float | None:
    """The median; None if there are no values."""
    return statistics.median(values) if values else None


KEYS_LEAST, KEYS_MOST = 10_000, 10_000_000
SOAK_MINUTES = 30.0


class Goal(NamedTuple):
    """One figure and its limit."""

    text: str
    measure: Callable[[Programs], float | None]
    """The figure; None: not measured, or not at the size of the goal."""
    sense: Literal["at least", "at most"]
    limit: float
    unit: str


class Verdict(NamedTuple):
    """The verdict on a goal."""

    goal: str
    state: Literal["reached", "missed", "not measured"]
    figure: str
    """The figure with its limit and unit."""


def judge(programs: Programs) -> list[Verdict]:
    """Judge every goal, in their order."""
    return [*(_verdict(goal, goal.measure(programs)) for goal in GOALS), _memory(programs)]


def _verdict(goal: Goal, value: float | None) -> Verdict:
    wanted = f"{goal.sense} {goal.limit:g} {goal.unit}"
    if value is None:
        return Verdict(goal.text, "not measured", wanted)
    is_reached = value >= goal.limit if goal.sense == "at least" else value <= goal.limit
    return Verdict(goal.text, "reached" if is_reached else "missed", f"{value:,.2f} {goal.unit}; {wanted}")


def _times(pair: Pair) -> Callable[[Programs], float | None]:
    return lambda programs: middle(of_rounds(programs, pair))


def _of(program: str, name: str, field: str) -> Callable[[Programs], float | None]:
    return lambda programs: middle(series(programs, program, name, field))


def _of_sizes(programs: Programs) -> float | None:
    """The largest ratio of cost growth to size growth, over the steps; 1 is linear growth."""
    steps = [
        (middle(of_rounds(programs, Pair("growth", f"sizes {less}", f"sizes {more}"))), more / less)
        for less, more in pairwise((70, 1_000, 10_000))
    ]
    step_ratios = [cost / size for cost, size in steps if cost is not None]
    return max(step_ratios) if len(step_ratios) == len(steps) else None


def _of_soak(field: str) -> Callable[[Programs], float | None]:
    """A function for a figure of a soak that was long enough."""

    def measure(programs: Programs) -> float | None:
        minutes = middle(series(programs, "soak", "soak", "minutes"))
        return None if minutes is None or minutes < SOAK_MINUTES * 0.99 else _of("soak", "soak", field)(programs)

    return measure


def _memory(programs: Programs) -> Verdict:
    """The verdict on the memory goal, which is to state the growth for each key, partition and record of a batch."""
    texts = [
        _each(programs, "keys", KEYS_LEAST, 1_000_000, 1e6, "bytes a key"),
        _each(programs, "partitions", 1, 64, 1, "MB a partition"),
        _each(programs, "batches", 500, 50_000, 1e6, "bytes a record of a batch"),
    ]
    stated = [text for text in texts if text is not None]
    state: Literal["reached", "not measured"] = "reached" if len(stated) == len(texts) else "not measured"
    return Verdict("memory is stated per key, partition and batch", state, ", ".join(stated))


def _each(programs: Programs, group: str, least: int, most: int, factor: float, unit: str) -> str | None:
    low, high = (middle(series(programs, "growth", f"{group} {size}", "resident_mb")) for size in (least, most))
    return None if low is None or high is None else f"{(high - low) / (most - least) * factor:,.2f} {unit}"


_EXACTLY, _LEAST = ("exactly_once", "at_least_once")
GOALS = (
    Goal(
        "throughput beside Kafka Streams", _times(Pair("throughput", "sowstream", "Kafka Streams")), "at least", 2, "x"
    ),
    Goal("throughput beside Quix Streams", _times(Pair("throughput", "sowstream", "Quix Streams")), "at least", 5, "x"),
    Goal(
        "throughput beside the ceiling", _times(Pair("throughput", "sowstream", "pass-through")), "at least", 0.45, "x"
    ),
    Goal(
        "processor time beside Kafka Streams'",
        _times(Pair("throughput", "sowstream", "Kafka Streams", "cpu_s_per_million")),
        *("at most", 1, "x"),
    ),
    Goal("exactly once, 1,000 records/s, p50", _of("latency", _EXACTLY, "p50_ms"), "at most", 50, "ms"),
    Goal("exactly once, 1,000 records/s, p99", _of("latency", _EXACTLY, "p99_ms"), "at most", 100, "ms"),
    Goal("at least once, 1,000 records/s, p50", _of("latency", _LEAST, "p50_ms"), "at most", 3, "ms"),
    Goal("at least once, 1,000 records/s, p99", _of("latency", _LEAST, "p99_ms"), "at most", 15, "ms"),
    Goal("exactly once, half of the peak, p99", _of("loaded latency", "load 0.5", "p99_ms"), "at most", 300, "ms"),
    Goal(
        "a record's cost, 10,000 keys to 10,000,000",
        _times(Pair("growth", f"keys {KEYS_LEAST}", f"keys {KEYS_MOST}")),
        *("at most", 2, "x"),
    ),
    Goal("the cost's growth from 70 B to 10 KB beside the size's", _of_sizes, "at most", 1, "x"),
    Goal(
        "a record's cost, 1 partition to 64",
        _times(Pair("growth", "partitions 1", "partitions 64")),
        *("at most", 1.15, "x"),
    ),
    Goal("two processes beside one, both held", _times(Pair("growth", "held 2", "held 1")), "at least", 1.8, "x"),
    Goal("memory after half an hour at 70 %", _of_soak("memory_growth"), "at most", 1.1, "x"),
    Goal("lag in its last quarter", _of_soak("lag_s_last"), "at most", 1, "s of input"),
)
"""The goals of the issue, and the soak's lag: memory of a worker that does no work would be flat too."""
