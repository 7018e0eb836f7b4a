"""Figures of a run and their statistics, as tables for people and as JSON for programs."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.trial.bench.plan import BenchOptions, Machine


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


CEILING: Final = "pass-through"
WORKER: Final = "sowstream"

THROUGHPUT_COLUMNS: Final = ("exactly once", "records/s", "from - to", "CPU s/M", "of the ceiling", "from - to")
LATENCY_COLUMNS: Final = ("latency", "p50 ms", "p99 ms", "most ms")

EXPLAINED: Final = """\
records/s       input records, from the first one taken until all are committed: medians of the rounds, and the extremes
CPU s/M         processor seconds of that process for a million input records; the broker's are not in it
of the ceiling  the worker's rate in parts of the pass-through's: the median of the rounds' ratios, and the extremes
pass-through    writes each record to two topics with the same client library; no merge, no state, no transaction\
"""
LATENCY_EXPLAINED: Final = """\
latency         from publishing a record until a reader of committed records has its delta\
"""


@dataclass(frozen=True, slots=True)
class Result:
    """All figures, and the machine they were measured on."""

    options: BenchOptions
    """The options."""
    machine: Machine
    """The machine."""
    figures: Mapping[str, Sequence[Figure]]
    """By program, the figures of each round."""
    delays_s: Mapping[str, Sequence[float]]
    """By guarantee, the latency of each record; empty if latency was not measured."""

    def ratios(self) -> list[float]:
        """The worker's rate divided by the ceiling's, per round."""
        return ratios(self.figures[WORKER], self.figures[CEILING])


def throughput_rows(result: Result) -> list[tuple[str, ...]]:
    """A row for each program, with the columns THROUGHPUT_COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for program, of_program in result.figures.items():
        rate = spread([figure.records_per_s for figure in of_program])
        cpu = spread([figure.cpu_s_per_million for figure in of_program])
        part = spread(result.ratios())
        of_ceiling = (f"{part.median:.0%}", f"{part.least:.0%} - {part.most:.0%}") if program == WORKER else ("", "")
        rates = f"{rate.median:,.0f}", f"{rate.least:,.0f} - {rate.most:,.0f}"
        rows.append((program, *rates, f"{cpu.median:.1f}", *of_ceiling))
    return rows


def latency_rows(result: Result) -> list[tuple[str, ...]]:
    """A row for each guarantee, with the columns LATENCY_COLUMNS."""
    return [
        (guarantee.replace("_", " "), *(f"{value:.1f}" for value in _percentiles_ms(delays)))
        for guarantee, delays in result.delays_s.items()
    ]


def as_tree(result: Result) -> dict[str, Any]:
    """Everything, for JSON."""
    options = result.options
    part = spread(result.ratios())
    return {
        "machine": result.machine._asdict(),
        # Without `kafka`, which may have a password.
        "options": {name: value for name, value in asdict(options).items() if name != "kafka"}
        | {"broker": "given" if options.kafka else "embedded"},
        "rounds": {
            program: [_rounded(figure._asdict()) for figure in rows] for program, rows in result.figures.items()
        },
        "of_the_ceiling": _rounded(part._asdict()) | {"rounds": [round(ratio, 4) for ratio in result.ratios()]},
        "latency_ms": {
            guarantee: _rounded(dict(zip(("p50", "p99", "most"), _percentiles_ms(delays), strict=True)))
            | {"records": len(delays)}
            for guarantee, delays in result.delays_s.items()
        },
    }


def _percentiles_ms(delays_s: Sequence[float]) -> list[float]:
    return [percentile(delays_s, share) * 1000 for share in (0.5, 0.99, 1.0)]


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Round to the digits that are significant, and a few more."""
    return {name: round(value, 4) for name, value in figures.items()}
