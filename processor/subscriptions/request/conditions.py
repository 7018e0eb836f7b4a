"""Finds the conditions of a filter that an index can look up: equalities, ranges of numbers, beginnings of texts."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Hashable
from math import inf
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from processor.filter.compare import as_written, is_plain
from processor.filter.syntax_tree import (
    And,
    BeginsWith,
    Between,
    Call,
    Compare,
    Constant,
    In,
    Like,
    Node,
    Or,
    Path,
    Scalar,
)
from processor.filter.value import Number, is_nan, number
from processor.record import Value
from processor.values.instant import Instant, Time, read_time

Parts: TypeAlias = tuple[str | int, ...]
"""A path, as the tree has it."""

NumberKey: TypeAlias = Number | tuple[Number]
"""The key of a number in a table: the number itself, or alone in a tuple if no float is written as it is."""


_KEY: Final = Call("SOW_KEY", ())


def required_values(node: Node) -> dict[Parts, tuple[Scalar, ...]]:
    """Paths at which a record that matches has one of some values."""
    return {operand.parts: values for operand, values in _required(node).items() if isinstance(operand, Path)}


def required_keys(node: Node) -> tuple[Scalar, ...] | None:
    """Values of which a record that matches has one as its `SOW_KEY()`; None: any."""
    return _required(node).get(_KEY)


def _required(node: Node) -> dict[Path | Call, tuple[Scalar, ...]]:
    """Paths, and `SOW_KEY()`, of which a record that matches has one of some values."""
    match node:
        case Compare("=", Path() | Call("SOW_KEY") as operand, Constant(value)):
            return {operand: (value,)}
        case Compare("=", Constant(value), Path() | Call("SOW_KEY") as operand):
            return {operand: (value,)}
        case In(Path() | Call("SOW_KEY") as operand, choices):
            constants = tuple(choice.value for choice in choices if isinstance(choice, Constant))
            return {operand: constants} if len(constants) == len(choices) else {}
        case And(operands):
            # Of an array different elements may satisfy each operand: one of two conditions stays, not what both say.
            required: dict[Path | Call, tuple[Scalar, ...]] = {}
            for one in operands:
                for operand, values in _required(one).items():
                    if operand not in required or len(values) < len(required[operand]):
                        required[operand] = values
            return required
        case Or(operands):
            first, *others = map(_required, operands)
            return {
                operand: values + tuple(value for other in others for value in other[operand])
                for operand, values in first.items()
                if all(operand in other for other in others)
            }
        case _:
            return {}


def element_keys(element: Scalar) -> tuple[NumberKey | Instant, ...]:
    """The key of a number, of a text that is one, or of a time of a record in a table; empty for other values."""
    if type(element) is Time:
        return (element.instant,)
    read = number(element)
    return () if read is None or is_nan(read) else (number_key(read),)


def constant_keys(constant: Scalar) -> tuple[NumberKey | Instant, ...]:
    """The same of a value in a filter, whose texts are equal to the times that they name, too."""
    keys = element_keys(constant)
    instant = read_time(constant) if type(constant) is str else None
    return keys if instant is None else (*keys, instant)


def number_key(value: Number) -> NumberKey:
    """The key of a number in a table: two numbers have the same key exactly where the filter language has them equal.

    A float is equal to others by its decimal text (`as_written`), but Python finds it in a table by its value: it would
    find the float 0.1 under the Decimal of all its 55 digits. So a number that is written as a float is has the float
    for its key, and a number that no float is written as has a key that no float is equal to.
    """
    if type(value) is float or is_plain(value):
        return value
    try:
        near = float(value)
    except OverflowError:
        return (value,)
    exact, written = as_written(value, near)
    return near if exact == written else (value,)


Item = TypeVar("Item", bound=Hashable)
"""The indexed item: the owner of the filter."""

Bucket: TypeAlias = dict[int, Item]
"""Items by their turn."""

_EXACT: Final = 2**53
"""Numbers below it are placed among floats without rounding."""
_SLOTS_MAX: Final = 1_000_000
"""Entries of the table of segments; with more, ranges are looked through by their lower bound."""
_LITERAL: Final = re.compile(r"\^([A-Za-z0-9 _-]+)(.?)", re.DOTALL)
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class NumberRange(NamedTuple):
    """A range of numbers; both bounds belong to it."""

    low: float
    high: float


Condition: TypeAlias = "NumberRange | tuple[str, ...]"
"""A range of numbers, or beginnings of texts."""


def required_ranges(node: Node) -> dict[Parts, Condition]:
    """Paths at which a record that matches has a number of a range, or a text with one of some beginnings.

    Values of other types may match too: of an array each element may satisfy another condition, and texts are above
    every number. The index takes them for candidates.
    """
    match node:
        case Compare(operator, Path(parts), Constant(value)) if operator in _MIRRORED and _is_number(value):
            return {parts: _range_of(operator, value)}  # type: ignore[arg-type]
        case Compare(operator, Constant(value), Path(parts)) if operator in _MIRRORED and _is_number(value):
            return {parts: _range_of(_MIRRORED[operator], value)}  # type: ignore[arg-type]
        case Between(Path(parts), Constant(low), Constant(high)) if _is_number(low) and _is_number(high):
            return {parts: NumberRange(low, high)}  # type: ignore[arg-type]
        case BeginsWith(Path(parts), texts) if texts and all(texts):
            return {parts: texts}
        case Like(Path(parts), pattern) if (beginning := _beginning(pattern)) is not None:
            return {parts: (beginning,)}
        case And(operands):
            required: dict[Parts, Condition] = {}
            for operand in operands:
                for parts, condition in required_ranges(operand).items():
                    held = required.get(parts)
                    if isinstance(held, NumberRange) and isinstance(condition, NumberRange):
                        required[parts] = NumberRange(max(held.low, condition.low), min(held.high, condition.high))
                    else:
                        required.setdefault(parts, condition)
            return required
        case Or(operands):
            first, *others = map(required_ranges, operands)
            united = {parts: [condition] for parts, condition in first.items()}
            for other in others:
                united = {parts: [*conditions, other[parts]] for parts, conditions in united.items() if parts in other}
            return {parts: union for parts, conditions in united.items() if (union := _union(conditions)) is not None}
        case _:
            return {}


def _union(conditions: list[Condition]) -> Condition | None:
    ranges = [one for one in conditions if isinstance(one, NumberRange)]
    if len(ranges) == len(conditions):
        return NumberRange(min(one.low for one in ranges), max(one.high for one in ranges))
    if ranges:
        return None
    return tuple(text for one in conditions for text in one if isinstance(text, str))


def _is_number(value: object) -> bool:
    return (type(value) is int or type(value) is float) and -_EXACT < value < _EXACT


def _range_of(operator: str, value: float) -> NumberRange:
    return NumberRange(-inf, value) if operator in ("<", "<=") else NumberRange(value, inf)


def _beginning(pattern: str) -> str | None:
    """The text with which all matches of a pattern begin."""
    match = _LITERAL.match(pattern)
    if match is None or "|" in pattern:
        return None
    literal, following = match[1], match[2]
    if following in ("*", "?", "{"):
        literal = literal[:-1]
    return literal or None


class RangePlace(Generic[Item]):
    """The items with a range or beginnings at one path."""

    __slots__ = (
        "_beginnings",
        "_bounds",
        "_by_low",
        "_from",
        "_from_lows",
        "_is_built",
        "_lengths",
        "_lows",
        "_ranges",
        "_segments",
        "_texts",
        "_to",
        "_to_highs",
    )

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[NumberRange, Item]] = {}
        self._texts: dict[int, tuple[tuple[str, ...], Item]] = {}
        self._beginnings: dict[str, Bucket[Item]] = {}
        self._lengths: list[int] = []
        self._is_built = True
        self._bounds: list[float] = []
        self._segments: list[list[tuple[int, Item]]] | None = []
        self._by_low: list[tuple[float, float, int, Item]] = []
        self._lows: list[float] = []
        self._to: list[tuple[int, Item]] = []  # Ranges without a lower bound, by their upper one.
        self._to_highs: list[float] = []
        self._from: list[tuple[int, Item]] = []  # Ranges without an upper bound, by their lower one.
        self._from_lows: list[float] = []

    def __bool__(self) -> bool:
        """Return whether there is any item."""
        return bool(self._ranges or self._texts)

    def add(self, turn: int, condition: Condition, item: Item) -> None:
        """Add an item."""
        if isinstance(condition, NumberRange):
            self._ranges[turn] = (condition, item)
            self._is_built = False
        else:
            self._texts[turn] = (condition, item)
            for text in condition:
                self._beginnings.setdefault(text, {})[turn] = item
            self._lengths = sorted({len(text) for text in self._beginnings})

    def remove(self, turn: int) -> None:
        """Remove an item."""
        if self._ranges.pop(turn, None) is not None:
            self._is_built = False
            return
        texts, _ = self._texts.pop(turn)
        for text in dict.fromkeys(texts):
            bucket = self._beginnings[text]
            bucket.pop(turn, None)
            if not bucket:
                del self._beginnings[text]
        self._lengths = sorted({len(text) for text in self._beginnings})

    def find(self, value: Value, buckets: list[Bucket[Item]]) -> None:
        """Append the items that a value at the path may match."""
        if value is None:
            return
        kind = type(value)
        if self._ranges:
            if (kind is int or kind is float) and -_EXACT < value < _EXACT:
                if stabbed := self._stabbed(value):
                    # In the order of adding, as everywhere.
                    buckets.append(dict(sorted(stabbed, key=itemgetter(0))))
            else:
                buckets.append({turn: item for turn, (_, item) in self._ranges.items()})
        if self._texts:
            if kind is str:
                for length in self._lengths:
                    if length > len(value):
                        break
                    if (bucket := self._beginnings.get(value[:length])) is not None:
                        buckets.append(bucket)
            else:
                buckets.append({turn: item for turn, (_, item) in self._texts.items()})

    def _stabbed(self, value: float) -> list[tuple[int, Item]]:
        """The items whose range has a number."""
        if not self._is_built:
            self._build()
        open_ended = self._to[bisect_left(self._to_highs, value) :] + self._from[: bisect_right(self._from_lows, value)]
        bounded = self._stabbed_bounded(value) if self._by_low else []
        return open_ended + bounded if open_ended else bounded

    def _stabbed_bounded(self, value: float) -> list[tuple[int, Item]]:
        """The items whose range has two bounds, and a number."""
        if self._segments is None:
            end = bisect_right(self._lows, value)
            return [(turn, item) for _, high, turn, item in self._by_low[:end] if high >= value]
        at = bisect_left(self._bounds, value)
        is_bound = at < len(self._bounds) and self._bounds[at] == value
        return self._segments[2 * at + 1 if is_bound else 2 * at]

    def _build(self) -> None:
        """Build the table of segments: before, at and behind each bound, the ranges that cover it."""
        self._is_built = True
        # The turn is unique, so that items are never compared.
        every = sorted((one.low, one.high, turn, item) for turn, (one, item) in self._ranges.items())
        from_low = [(low, turn, item) for low, high, turn, item in every if high == inf]
        to_high = sorted((high, turn, item) for low, high, turn, item in every if low == -inf and high != inf)
        self._from, self._from_lows = [(turn, item) for _, turn, item in from_low], [low for low, *_ in from_low]
        self._to, self._to_highs = [(turn, item) for _, turn, item in to_high], [high for high, *_ in to_high]
        self._by_low = [one for one in every if -inf < one[0] and one[1] < inf]
        self._lows = [low for low, *_ in self._by_low]
        self._bounds = sorted({bound for low, high, *_ in self._by_low for bound in (low, high)})
        self._segments = [[] for _ in range(2 * len(self._bounds) + 1)]
        slots = 0
        for low, high, turn, item in self._by_low:
            first = 2 * bisect_left(self._bounds, low) + 1
            last = 2 * bisect_left(self._bounds, high) + 1
            slots += max(0, last - first + 1)
            if slots > _SLOTS_MAX:
                self._segments = None
                return
            for segment in self._segments[first : last + 1]:
                segment.append((turn, item))
