"""The ratios that are comparable between machines: two series of one program, measured in turn, round by round."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

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
