"""The least and the greatest of some values that come and go, with a bounded number of them in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from decimal import Decimal
from typing import Any, Final, TypeAlias

from processor.filter.syntax_tree import Scalar
from processor.filter.value import is_nan, number, scalar
from processor.record import Value

KEPT_MAX: Final = 512
"""Most values that are kept of a group, unless the caller says another number; beyond it, half of them, the farther
from the extreme, are forgotten."""

KEPT_LEAST: Final = 16
"""Values that an extreme which gets one keeps although others have taken all room there is for them."""

LOW_SHARE: Final = 4
"""An extreme is low when it keeps at most one of so many values that it may keep, and has forgotten others."""

OrderKey: TypeAlias = Any
"""A tuple that Python compares; its last element is the value itself, as text or number of one kind."""


class Exhausted(Exception):
    """All kept values have left, and others are not known any more: the group must be read again."""


class Extreme:
    """The least value of a multiset, or the greatest.

    Only the values nearest to the extreme are kept, sorted. When these have all left although others were forgotten,
    `best` raises `Exhausted`: once in so many removals, the group is read again.
    """

    __slots__ = ("_forgotten", "_is_greatest", "_kept", "_kept_max", "_size")

    def __init__(self, *, is_greatest: bool, kept_max: int | None = None) -> None:
        """Begin without values.

        Args:
            is_greatest: True for the greatest value, False for the least.
            kept_max: most values that are kept, at least 2; None: `KEPT_MAX`.
        """
        self._is_greatest = is_greatest
        self._kept_max = KEPT_MAX if kept_max is None else kept_max
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

    @property
    def is_low(self) -> bool:
        """True if few of the kept values are left, and others were forgotten."""
        return self._forgotten and len(self._kept) * LOW_SHARE <= self._kept_max

    def add(self, key: OrderKey) -> None:
        """Add a value."""
        self._size += 1
        kept = self._kept
        # Values beyond the farthest kept one are not known, so a new one there is not known either.
        if self._forgotten and (not kept or (key < kept[0] if self._is_greatest else key > kept[-1])):
            return
        insort(kept, key)
        if len(kept) > self._kept_max:
            self._forgotten = True
            if self._is_greatest:
                del kept[: self._kept_max // 2]
            else:
                del kept[self._kept_max // 2 :]

    def remove(self, key: OrderKey) -> None:
        """Remove a value that was added."""
        self._size -= 1
        kept = self._kept
        place = bisect_left(kept, key)
        if place < len(kept) and kept[place] == key:
            del kept[place]
        if not self._size:
            self._forgotten = False

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

    def __init__(self, *, is_greatest: bool, kept_max: int | None = None) -> None:
        """Begin without values; `is_greatest` is True for `MAX`, `kept_max` that of each `Extreme` of one kind."""
        self._is_greatest = is_greatest
        self._numbers = 0  # How many true numbers, or partial aggregates with some.
        # By themselves, as most values are integers, and Python compares two of them in a third of a tuple's time.
        self._integers = Extreme(is_greatest=is_greatest, kept_max=kept_max)
        self._numeric = Extreme(is_greatest=is_greatest, kept_max=kept_max)  # Other numbers, and texts that are some.
        self._texts = Extreme(is_greatest=is_greatest, kept_max=kept_max)  # All texts.
        self._other_texts = Extreme(is_greatest=is_greatest, kept_max=kept_max)  # Texts that are no numbers.

    @property
    def kept(self) -> int:
        """Number of values in memory."""
        return self._integers.kept + self._numeric.kept + self._texts.kept + self._other_texts.kept

    @property
    def is_low(self) -> bool:
        """True if few of the kept values of a kind are left, and others were forgotten."""
        return any(each.is_low for each in (self._integers, self._numeric, self._texts, self._other_texts))

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

    def partial(self) -> Value:
        """Return the values that can be the extreme of a group of which these are a part, for `combine`.

        They are 1 if there is a true number, else 0; the best number, or text that is one; the best text; and the best
        text that is no number. None is a value that is not there, or that another one excludes.

        Raises:
            Exhausted: one of them is not known any more.
        """
        other = self._other_texts.best() if self._is_greatest else None
        number = self._best_number() if other is None else None
        text = None if self._numbers else self._texts.best()
        return [int(self._numbers > 0), *(None if best is None else best[-1] for best in (number, text, other))]

    def combine(self, partial: Value, times: int) -> None:
        """Add the values of a part of the group, as `partial` returned them; `times` -1 removes them."""
        has_numbers, best_number, text, other = partial
        self._numbers += times * has_numbers
        # JSON has long integers as Decimals.
        if (value := scalar(best_number)) is not None:
            self._apply(*self._placed(value), times)
        for extreme, best in ((self._texts, text), (self._other_texts, other)):
            if best is not None:
                self._apply(extreme, (best,), times)

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
            self._apply(self._numeric, _number_key(near, value), times)
            if not is_text:
                self._numbers += times
        if is_text:
            self._apply(self._texts, (value,), times)
            if near is None:
                self._apply(self._other_texts, (value,), times)

    def _placed(self, value: Scalar) -> tuple[Extreme, OrderKey]:
        """Return the extreme to which a number, or a text that is one, belongs, and its key there."""
        return (self._integers, value) if type(value) is int else (self._numeric, _number_key(number(value), value))

    @staticmethod
    def _apply(extreme: Extreme, key: OrderKey, times: int) -> None:
        if times > 0:
            extreme.add(key)
        else:
            extreme.remove(key)


def _number_key(near: Scalar, value: Scalar) -> OrderKey:
    """Return the key of a number, or of a text that is one."""
    return comparable(near), type(value).__name__, str(value), value


def comparable(value: Scalar) -> Scalar:
    """Return a number as it is written: the double 0.1 and the Decimal 0.1 are one; other values as they are."""
    if type(value) is float and value - value == 0.0:
        return Decimal(repr(value))
    return value
