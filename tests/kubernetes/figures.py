"""Collects the results of the checks, and writes them as a table."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple


class Figure(NamedTuple):
    """One row of the table."""

    check: str
    """The number of the check, such as `K2`."""
    action: str
    """The action, with its circumstances."""
    result: str
    """The figures."""
    goal: str
    is_met: bool


@dataclass
class Figures:
    """The table of a run."""

    rows: list[Figure] = field(default_factory=list)

    def add(self, check: str, action: str, result: str, goal: str = "", *, is_met: bool = True) -> None:
        """Add a row, and print it."""
        self.rows.append(Figure(check, action, result, goal, is_met))
        print(f"{time.strftime('%H:%M:%S')} {check} {action}: {result}" + ("" if is_met else f"; MISSED: {goal}"))

    def __str__(self) -> str:
        lines = ["| check | action | result | goal |", "|---|---|---|---|"]
        for row in self.rows:
            goal = row.goal if row.is_met else f"**missed:** {row.goal}"
            lines.append(f"| {row.check} | {row.action} | {row.result} | {goal} |")
        return "\n".join(lines)


@dataclass(frozen=True)
class Pauses:
    """The pauses of each partition: times without a committed delta."""

    seconds: dict[str, list[float]]
    """Lengths by partition, in order; partitions without a pause have an empty list."""

    @property
    def longest_s(self) -> float:
        """The longest of all."""
        return max((length for lengths in self.seconds.values() for length in lengths), default=0.0)

    @property
    def median_s(self) -> float:
        """The median of each partition's longest."""
        return median(max(lengths, default=0.0) for lengths in self.seconds.values())

    @property
    def most(self) -> int:
        """The largest number of pauses of one partition."""
        return max(map(len, self.seconds.values()), default=0)

    @property
    def mean(self) -> float:
        """The mean number of pauses of a partition."""
        return sum(map(len, self.seconds.values())) / max(1, len(self.seconds))

    def __str__(self) -> str:
        return (
            f"pauses per partition {self.mean:.1f} (at most {self.most}), longest {self.longest_s:.1f} s, "
            f"median of the longest {self.median_s:.1f} s"
        )
