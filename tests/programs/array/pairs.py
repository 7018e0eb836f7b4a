"""Finds rows of values in which every feasible pair of values occurs: a covering array of strength two."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

Row: TypeAlias = Mapping[str, str]
"""A value for each factor."""

Pair: TypeAlias = tuple[tuple[str, str], tuple[str, str]]
"""Two factors, each with a value, in the order of the factors."""


class Forbidden(NamedTuple):
    """Values that cannot meet, with the reason."""

    values: Mapping[str, frozenset[str]]
    """The combination is forbidden where each of these factors has one of these values."""
    reason: str

    def holds(self, row: Row) -> bool:
        """Return whether a row, which may lack factors, has the combination."""
        return all(row.get(factor) in values for factor, values in self.values.items())


class Factors:
    """Factors with their values and their forbidden combinations."""

    def __init__(self, values: Mapping[str, Sequence[str]], forbidden: Iterable[Forbidden]) -> None:
        self.values = values
        self.forbidden = list(forbidden)
        self._feasible: list[Pair] | None = None

    def is_allowed(self, row: Row) -> bool:
        """Return whether a row has no forbidden combination."""
        return not any(combination.holds(row) for combination in self.forbidden)

    def completed(self, row: Row) -> Row | None:
        """An allowed row of all factors with these values; None if there is none."""
        if not self.is_allowed(row):
            return None
        missing = next((factor for factor in self.values if factor not in row), None)
        if missing is None:
            return row
        completions = (self.completed({**row, missing: value}) for value in self.values[missing])
        return next((completion for completion in completions if completion is not None), None)

    def pairs(self) -> Iterator[Pair]:
        """All pairs of values of two factors."""
        for one, other in itertools.combinations(self.values, 2):
            for value, other_value in itertools.product(self.values[one], self.values[other]):
                yield (one, value), (other, other_value)

    def feasible_pairs(self) -> list[Pair]:
        """The pairs that occur in some allowed row."""
        if self._feasible is None:
            self._feasible = [pair for pair in self.pairs() if self.completed(dict(pair)) is not None]
        return self._feasible


def pairs_in(row: Row) -> Iterator[Pair]:
    """The pairs of a row."""
    return itertools.combinations(row.items(), 2)


def covering_array(factors: Factors) -> list[Row]:
    """Rows that cover every feasible pair. The same factors give the same rows.

    Greedy: each row begins with the first pair that is not covered, then takes for each factor the value that covers
    most pairs with the row's values. Of equal ones it takes any: values in turn would always meet the same others.
    """
    uncovered = dict.fromkeys(factors.feasible_pairs())
    rng = random.Random(0)
    rows: list[Row] = []
    while uncovered:
        row = _row(factors, dict(next(iter(uncovered))), uncovered, rng)
        for pair in pairs_in(row):
            uncovered.pop(pair, None)
        rows.append(row)
    return rows


def _row(factors: Factors, begun: Row, uncovered: dict[Pair, None], rng: random.Random) -> Row:
    row = begun
    for factor, values in factors.values.items():
        if factor in begun:
            continue
        gains = {value: (_gain(factors, row, (factor, value), uncovered), rng.random()) for value in values}
        best_first = sorted(values, key=lambda value, gains=gains: gains[value], reverse=True)
        row = next({**row, factor: value} for value in best_first if factors.completed({**row, factor: value}))
    return {factor: row[factor] for factor in factors.values}


def _gain(factors: Factors, row: Row, item: tuple[str, str], uncovered: dict[Pair, None]) -> int:
    """The number of uncovered pairs that an item would cover with those of a row."""
    order = list(factors.values)
    return sum(
        ((other, item) if order.index(other[0]) < order.index(item[0]) else (item, other)) in uncovered
        for other in row.items()
    )
