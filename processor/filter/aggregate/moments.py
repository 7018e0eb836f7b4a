"""Exact sums of decimal numbers, and the mean and the standard deviations that follow from them.

A number counts as it is written: the double 0.1 is one tenth, so 0.1 + 0.2 is 0.3. Sums are integers with a common
number of decimals, which do not drift, do not overflow, and do not depend on the order of their terms.
"""

from __future__ import annotations

from decimal import Context, Decimal
from math import isqrt
from typing import Final, TypeAlias

from processor.filter.value import Number, is_finite

EXPONENT_MAX: Final = 1_000
"""Largest power of ten, up or down, and most digits, of a number that is summed; others are ignored, as a sum has all
digits between those of its terms."""

_ROOT_BITS: Final = 64
"""A root is computed to at least this many bits and then rounded once to the 53 of a double."""

_CONTEXT: Final = Context(prec=10_000)

Scaled: TypeAlias = tuple[int, int]
"""An exact number: an integer, and the number of decimals by which its point is moved to the left, 0 or more."""

PartialMoments: TypeAlias = tuple[int, int, int, int]
"""The count, the sum, the decimals of the sum, and the sum of squares, which has twice these decimals."""


def scaled(number: Number) -> Scaled | None:
    """Return a number exactly; None for infinity, NaN, and a number whose power of ten is beyond `EXPONENT_MAX`."""
    if type(number) is int or type(number) is bool:
        return number, 0
    if not is_finite(number):
        return None
    if type(number) is float and "e" not in (text := repr(number)):
        whole, _, fraction = text.partition(".")  # Most doubles: several times as fast as a Decimal.
        return (int(whole), 0) if fraction == "0" else (int(whole + fraction), len(fraction))
    sign, digits, exponent = Decimal(repr(number) if type(number) is float else number).as_tuple()
    assert isinstance(exponent, int)
    if abs(exponent) > EXPONENT_MAX or len(digits) > EXPONENT_MAX:
        return None
    mantissa = int("".join(map(str, digits)))
    if sign:
        mantissa = -mantissa
    return (mantissa * 10**exponent, 0) if exponent > 0 else (mantissa, -exponent)


def as_number(value: int, decimals: int) -> Number:
    """Return an exact number as a record has it: an integer, else a double if it is written so, else a Decimal."""
    while decimals and value % 10 == 0:
        value //= 10
        decimals -= 1
    if not decimals:
        return value
    exact = Decimal(value).scaleb(-decimals, _CONTEXT)
    near = float(exact)
    return near if Decimal(repr(near)) == exact else exact


class Moments:
    """The count, the sum and the sum of squares of some numbers; numbers are added and removed exactly."""

    __slots__ = ("_decimals", "_has_squares", "_squares", "_total", "count")

    def __init__(self, *, has_squares: bool = True) -> None:
        """Begin without numbers.

        Args:
            has_squares: False where no deviation will be asked for.
        """
        self.count = 0
        """Number of numbers."""
        self._has_squares = has_squares
        self._decimals = 0
        self._total = 0
        self._squares = 0

    def add(self, number: Scaled, times: int = 1) -> None:
        """Add a number; `times` -1 removes it."""
        value, decimals = number
        if decimals != self._decimals:
            value *= self._align(decimals)
        self.count += times
        if not self.count:
            self._total = self._squares = self._decimals = 0
            return
        self._total += times * value
        if self._has_squares:
            self._squares += times * value * value

    @property
    def partial(self) -> PartialMoments:
        """The numbers' moments, for `combine`."""
        return self.count, self._total, self._decimals, self._squares

    def combine(self, partial: PartialMoments, times: int = 1) -> None:
        """Add the numbers of other moments; `times` -1 removes them."""
        count, total, decimals, squares = partial
        if decimals != self._decimals:
            factor = self._align(decimals)
            total *= factor
            squares *= factor * factor
        self.count += times * count
        if not self.count:
            self._total = self._squares = self._decimals = 0
            return
        self._total += times * total
        self._squares += times * squares

    def _align(self, decimals: int) -> int:
        """Return the factor that gives numbers of some decimals those of the sum; a sum with fewer gets theirs."""
        factor: int = 10 ** abs(self._decimals - decimals)
        if decimals <= self._decimals:
            return factor
        self._total *= factor
        self._squares *= factor * factor
        self._decimals = decimals
        return 1

    def replace(self, old: int, new: int) -> None:
        """Remove a whole number, and add another one."""
        if self._decimals or self._has_squares:
            self.add((old, 0), -1)
            self.add((new, 0))
        else:
            self._total += new - old

    def sum(self) -> Number | None:
        """Return the exact sum; None of nothing."""
        return as_number(self._total, self._decimals) if self.count else None

    def mean(self) -> float | None:
        """Return the mean, rounded once to the nearest double; None of nothing, or beyond the doubles."""
        if not self.count:
            return None
        try:
            # A division of integers in Python is rounded correctly.
            mean: float = self._total / (self.count * 10**self._decimals)
        except OverflowError:
            return None
        return mean

    def deviation(self, *, of_sample: bool) -> float | None:
        """Return the standard deviation, rounded once; None of nothing, and of a sample of one."""
        count = self.count
        if count <= of_sample:
            return None
        spread = count * self._squares - self._total * self._total
        divisor = count * (count - 1) if of_sample else count * count
        return _root(spread, divisor * 10 ** (2 * self._decimals))


def _root(numerator: int, denominator: int) -> float | None:
    """Return the square root of a fraction as the nearest double; None beyond the doubles."""
    if not numerator:
        return 0.0
    missing_bits = 2 * _ROOT_BITS - (numerator.bit_length() - denominator.bit_length())
    shift = max(0, (missing_bits + 1) // 2)
    quotient, rest = divmod(numerator << (2 * shift), denominator)
    root = isqrt(quotient)
    # The last bit tells that digits were cut off, so that the one rounding below goes the right way.
    sticky = root * 2 + (root * root != quotient or rest != 0)
    try:
        return sticky / (1 << (shift + 1))
    except OverflowError:
        return None
