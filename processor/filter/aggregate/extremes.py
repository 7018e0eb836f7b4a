"""The least and the greatest of some values that come and go, with a bounded number of them in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from decimal import Decimal
from typing import Any, Final, TypeAlias

from processor.filter.syntax_tree import Scalar
from processor.filter.value import is_nan, number

KEPT_MAX: Final = 512
"""Most values that are kept of a group; beyond it, half of them, the farther from the extreme, are forgotten."""

OrderKey: TypeAlias = Any
"""A tuple that Python compares; its last element is the value itself, as text or number of one kind."""


class Exhausted(Exception):
    """All kept values have left, and others are not known any more: the group must be read again."""


class Extreme:
    """The least value of a multiset, or the greatest.

    Only the values nearest to the extreme are kept, sorted. When these have all left although others were forgotten,
    `best` raises `Exhausted`: once in so many removals, the group is read again.
    """

    __slots__ = ("_forgotten", "_is_greatest", "_kept", "_size")

    def __init__(self, *, is_greatest: bool) -> None:
        """Begin without values.

        Args:
            is_greatest: True for the greatest value, False for the least.
        """
        self._is_greatest = is_greatest
        self._kept: list[OrderKey] = []  # Ascending.
        self._size = 0
        self._forgotten = False

    def __len__(self) -> int:
        """Number of values, forgotten ones included."""
        return self._size

    @property
    def kept(self) -> int:
        """Number of values in memory."""
        return len(self._kept)

    def add(self, key: OrderKey) -> None:
        """Add a value."""
        self._size += 1
        kept = self._kept
        # Values beyond the farthest kept one are not known, so a new one there is not known either.
        if self._forgotten and (not kept or (key < kept[0] if self._is_greatest else key > kept[-1])):
            return
        insort(kept, key)
        if len(kept) > KEPT_MAX:
            self._forgotten = True
            if self._is_greatest:
                del kept[: KEPT_MAX // 2]
            else:
                del kept[KEPT_MAX // 2 :]

    def remove(self, key: OrderKey) -> None:
        """Remove a value that was added."""
        self._size -= 1
        kept = self._kept
        place = bisect_left(kept, key)
        if place < len(kept) and kept[place] == key:
            del kept[place]

    def best(self) -> OrderKey | None:
        """Return the extreme; None without values.

        Raises:
            Exhausted: it is not known any more.
        """
        if self._kept:
            return self._kept[-1 if self._is_greatest else 0]
        if self._size:
            raise Exhausted
        return None


class ExtremeOfValues:
    """`MIN` or `MAX`: numbers by value, texts by characters, and a text that is no number above every number.

    Texts that are numbers are compared as numbers where a number is in the group, else as texts: so the filter language
    compares two of them.
    """

    __slots__ = ("_integers", "_is_greatest", "_numbers", "_numeric", "_other_texts", "_texts")

    def __init__(self, *, is_greatest: bool) -> None:
        """Begin without values; `is_greatest` is True for `MAX`."""
        self._is_greatest = is_greatest
        self._numbers = 0  # How many true numbers.
        # By themselves, as most values are integers, and Python compares two of them in a third of a tuple's time.
        self._integers = Extreme(is_greatest=is_greatest)
        self._numeric = Extreme(is_greatest=is_greatest)  # Other numbers, and texts that are numbers.
        self._texts = Extreme(is_greatest=is_greatest)  # All texts.
        self._other_texts = Extreme(is_greatest=is_greatest)  # Texts that are no numbers.

    @property
    def kept(self) -> int:
        """Number of values in memory."""
        return self._integers.kept + self._numeric.kept + self._texts.kept + self._other_texts.kept

    def add(self, value: Scalar) -> None:
        """Add a value that is not NULL."""
        if type(value) is int:
            self._numbers += 1
            self._integers.add(value)
        else:
            self._change(value, 1)

    def remove(self, value: Scalar) -> None:
        """Remove a value that was added."""
        if type(value) is int:
            self._numbers -= 1
            self._integers.remove(value)
        else:
            self._change(value, -1)

    def value(self) -> Scalar:
        """Return the extreme; None without values.

        Raises:
            Exhausted: it is not known any more.
        """
        if not self._numbers:
            best = self._texts.best()
        elif self._is_greatest and len(self._other_texts):
            best = self._other_texts.best()
        else:
            best = self._best_number()
        return None if best is None else best[-1]

    def _best_number(self) -> OrderKey | None:
        """Return the extreme of numbers, and of texts that are numbers."""
        integer, other = self._integers.best(), self._numeric.best()
        if integer is None:
            return other
        key = (integer, "int", "", integer)  # One int has one text.
        if other is None:
            return key
        return max(key, other) if self._is_greatest else min(key, other)

    def _change(self, value: Scalar, times: int) -> None:
        near = number(value)
        is_text = isinstance(value, str)
        if near is not None and not is_nan(near):
            key = (comparable(near), type(value).__name__, str(value), value)
            self._apply(self._numeric, key, times)
            if not is_text:
                self._numbers += times
        if is_text:
            self._apply(self._texts, (value,), times)
            if near is None:
                self._apply(self._other_texts, (value,), times)

    @staticmethod
    def _apply(extreme: Extreme, key: OrderKey, times: int) -> None:
        if times > 0:
            extreme.add(key)
        else:
            extreme.remove(key)


def comparable(value: Scalar) -> Scalar:
    """Return a number as it is written: the double 0.1 and the Decimal 0.1 are one; other values as they are."""
    if type(value) is float and value - value == 0.0:
        return Decimal(repr(value))
    return value
