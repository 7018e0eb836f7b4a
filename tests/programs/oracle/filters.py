"""Filters of four kinds, each with its text and its result for a record (filter.md, rules 1, 2, 3, 5, 7 and 8)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

from tests.programs.oracle.numbers import instant_of, number_of
from tests.programs.oracle.values import Path, is_object, value_at

Comparison: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]

_NUMERIC: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Compare:
    """A comparison of a path and a constant: `/a/b > 10`. Any element of an array counts."""

    path: Path
    operator: Comparison
    constant: int | float | str

    @property
    def text(self) -> str:
        """The filter as a subscriber writes it."""
        constant = f"'{self.constant}'" if isinstance(self.constant, str) else repr(self.constant)
        return f"{_path_text(self.path)} {self.operator} {constant}"

    def matches(self, record: Any) -> bool:
        """Return whether a record matches; a comparison with NULL is false."""
        orders = [_order(element, self.constant) for element in scalars(value_at(record, self.path))]
        holds = {
            "=": lambda order: order == 0,
            "!=": lambda order: order != 0,
            "<": lambda order: order is not None and order < 0,
            "<=": lambda order: order is not None and order <= 0,
            ">": lambda order: order is not None and order > 0,
            ">=": lambda order: order is not None and order >= 0,
        }[self.operator]
        return any(map(holds, orders))


@dataclass(frozen=True)
class IsNull:
    """`/a/b IS NULL`: a missing field, a null, an empty text, an empty array, an object."""

    path: Path

    @property
    def text(self) -> str:
        """The filter as a subscriber writes it."""
        return f"{_path_text(self.path)} IS NULL"

    def matches(self, record: Any) -> bool:
        """Return whether a record matches."""
        return not scalars(value_at(record, self.path))


@dataclass(frozen=True)
class Like:
    """`/a/b LIKE 'x|y'`: a regular expression is found in the text."""

    path: Path
    expression: str

    @property
    def text(self) -> str:
        """The filter as a subscriber writes it."""
        return f"{_path_text(self.path)} LIKE '{self.expression}'"

    def matches(self, record: Any) -> bool:
        """Return whether a record matches; NULL does not."""
        elements = scalars(value_at(record, self.path))
        return any(isinstance(element, str) and re.search(self.expression, element) for element in elements)


Filter: TypeAlias = Compare | IsNull | Like


def scalars(value: Any) -> list[Any]:
    """The scalars of a value that are not NULL: itself, or those of an array's elements."""
    if isinstance(value, list):
        return [scalar for element in value for scalar in scalars(element)]
    if value is None or value == "" or is_object(value) or type(value) is object:
        return []
    return [value]


def numeric(value: Any) -> Decimal | float | None:
    """A number, or a text that is one, or a boolean; None for other scalars. NaN stays itself."""
    if isinstance(value, bool):
        return Decimal(int(value))
    if isinstance(value, str):
        return Decimal(value) if _NUMERIC.fullmatch(value) else None
    exact = number_of(value)
    return value if exact is None and isinstance(value, float) else exact


def _order(one: Any, other: Any) -> int | None:
    """-1, 0 or 1; None if only `!=` holds, as with NaN."""
    if isinstance(one, str) and isinstance(other, str):
        return (one > other) - (one < other)
    if not isinstance(one, str):
        left, right = instant_of(one), instant_of(other)
        if left is not None and right is not None:
            return (left > right) - (left < right)
    left_number, right_number = numeric(one), numeric(other)
    if left_number is None or right_number is None:
        # A text that is no number ranks above every number.
        return (left_number is None) - (right_number is None)
    if any(isinstance(number, float) for number in (left_number, right_number)):  # NaN
        return None
    return (left_number > right_number) - (left_number < right_number)


def _path_text(path: Path) -> str:
    return "".join(f"/{name}" for name in path)
