"""Compares two scalars, and the elements of two arrays.

Numbers, and texts that are numbers, compare by their value; times, and texts that are times, likewise. Times stand
above every number, and texts that are no numbers above both, where they are no times.

Arrays of a record may have any length, so not every pair is tried, with the same answers. For `=` the elements of one
side are looked up by hash; for `<` and its like a few elements of each side decide; for `!=` equal elements count once,
and soon there is a pair that differs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

from processor.filter.evaluation import RecordMetadata
from processor.filter.limits import CONVERSION_STEPS, DIGITS_MAX, PREPARATION_STEPS, lookup_steps
from processor.filter.syntax_tree import Comparison, Scalar
from processor.filter.value import Number, is_finite, is_nan, number
from processor.values.instant import Instant, Time, read_time

Holds: TypeAlias = Callable[[Scalar, Scalar], bool]
"""True if a comparison holds of two scalars, neither of them NULL."""

OPERATORS: Final[dict[Comparison, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Python's operator for each comparison."""

_PLAIN_MAX: Final = 2**53

MIRRORED: Final[dict[Comparison, Comparison]] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The equivalent comparison with its sides exchanged."""


def comparison(name: Comparison) -> Holds:
    """The comparison as a function of two scalars."""
    holds = OPERATORS[name]

    def compare(left: Scalar, right: Scalar) -> bool:
        if type(left) is str and type(right) is str:
            return holds(left, right)
        one, other = number(left), number(right)
        if one is None or other is None:
            if type(left) is Time or type(right) is Time:
                return holds(_beside_time(left), _beside_time(right))
            # One of them is a text and no number: it stands above.
            return holds(one is None, other is None)
        if type(one) is not type(other):
            one, other = as_written(one, other)
        return holds(one, other)

    return compare


def _beside_time(value: Scalar) -> tuple[int, Instant | None]:
    """The place of a scalar in a comparison with a time."""
    if type(value) is str:
        instant = read_time(value)
        return (2, None) if instant is None else (1, instant)
    return (1, value.instant) if type(value) is Time else (0, None)


def as_written(one: Number, other: Number) -> tuple[Number, Number]:
    """Two numbers, to be compared by their decimal texts: the float 0.1 and the Decimal 0.1 are one number.

    So are the float 1e23 and the integer that is written so, though the float's value is a little less.
    """
    if type(other) is float and type(one) is not float:
        return _beside(one, other)
    if type(one) is float and type(other) is not float:
        right, left = _beside(other, one)
        return left, right
    return one, other


def is_plain(value: Scalar) -> bool:
    """Return whether Python compares a number with any integer and float just as the language does.

    Up to here every integer is a float, and so what a float is written as lies on the same side of it as its value.
    """
    return (type(value) is int or type(value) is float) and -_PLAIN_MAX <= value <= _PLAIN_MAX


def _beside(exact: Number, near: float) -> tuple[Number, Number]:
    if type(exact) is int and (is_plain(exact) or is_plain(near)):
        return exact, near
    if is_finite(near):
        return exact, Decimal(repr(near))
    # Beside infinity, and beside NaN, any number is as good as 0.
    return 0.0, near


Elements: TypeAlias = Sequence[Scalar]
"""The elements of a value, none of them NULL."""

PAIRS_MAX: Final = 64
"""Up to so many pairs are tried: that is quicker than to prepare anything."""

_LESS: Final = comparison("<")
_SMALL_END: Final = 2**60
"""Integers below it have a hash of their own."""
_FLOAT_DIGITS: Final = 17
"""Most digits of a float as text."""
_FLOAT_CHARACTERS: Final = 40
"""More than a number of so few digits takes as text."""
_WIDE: Final = Context(prec=DIGITS_MAX, traps=[])


def any_pair(name: Comparison) -> Callable[[Elements, Elements, RecordMetadata], bool]:
    """Return whether a comparison holds of any element of one array with any of another."""
    holds = comparison(name)

    def check(left: Elements, right: Elements, metadata: RecordMetadata) -> bool:
        count, other_count = len(left), len(right)
        if count > 1 or other_count > 1:
            metadata.spend(min(count * other_count * CONVERSION_STEPS, (count + other_count) * PREPARATION_STEPS))
        elif count and other_count and type(left[0]) is str is type(right[0]):
            metadata.spend(lookup_steps(len(left[0])))
        if count * other_count > PAIRS_MAX:
            if name == "=":
                return any(map(members(right), left))
            if name == "!=":
                left, right = _distinct(left), _distinct(right)
            else:
                is_less = name in ("<", "<=")
                left, right = extremes(left, highest=not is_less), extremes(right, highest=is_less)
        return any(holds(one, other) for one in left for other in right)

    return check


def members(elements: Iterable[Scalar]) -> Callable[[Scalar], bool]:
    """A test whether a value, not NULL, equals one of some others, however many these are."""
    known = [element for element in elements if element is not None and element != ""]
    texts = frozenset(element for element in known if type(element) is str)
    # A text is a number to numbers only, and a time to times: two texts are compared as texts.
    from_numbers = _number_keys(element for element in known if type(element) is not str)
    from_all = from_numbers | _number_keys(texts)
    from_times = frozenset(element.instant for element in known if type(element) is Time)
    times = from_times | {instant for text in texts if (instant := read_time(text)) is not None}

    def is_member(value: Scalar) -> bool:
        if type(value) is str:
            if value in texts:
                return True
            if from_times and read_time(value) in from_times:
                return True
            read = number(value) if from_numbers else None
            return read is not None and number_key(read) in from_numbers
        if type(value) is Time:
            return value.instant in times
        read = number(value)
        return read is not None and number_key(read) in from_all

    return is_member


def number_key(value: Number) -> Number | str:
    """A number as something to look up: numbers that are written otherwise but equal have one key.

    That of a number of many digits is its text: Python's hash of a number is known, and thousands with the same one
    can be made.
    """
    if type(value) is float:
        return as_written(value, Decimal(0))[0]
    if type(value) is int and -_SMALL_END < value < _SMALL_END:
        return value
    exact = _WIDE.normalize(Decimal(value))
    if abs(exact) < _SMALL_END and exact == exact.to_integral_value():
        return int(exact)
    text = str(exact)
    has_many = len(text) > _FLOAT_CHARACTERS or len(exact.as_tuple().digits) > _FLOAT_DIGITS
    return text if has_many else exact


def extremes(elements: Elements, *, highest: bool) -> list[Scalar]:
    """The elements, eight at most, that a comparison by order can be decided with in place of all.

    Of each kind of value the lowest, or the highest: among the numbers, the times, the texts, and the texts that are
    numbers or times by what they are. Of those without an order among themselves, such as NaN, the first.
    """
    best: dict[str, tuple[Any, Scalar]] = {}

    def offer(kind: str, place: Any, element: Scalar) -> None:
        if kind in best:
            before = best[kind][0]
            is_lower = _LESS(place, before) if kind.endswith("number") else place < before
            if is_lower is highest or place == before:
                return
        best[kind] = place, element

    for element in elements:
        if type(element) is Time:
            offer("time", element.instant, element)
            continue
        read = number(element)
        if type(element) is not str:
            if is_nan(read):
                best.setdefault("nan", (None, element))
            else:
                offer("number", read, element)
            continue
        offer("text", element, element)
        if read is None:
            best.setdefault("text that is no number", (None, element))
        else:
            offer("text number", read, element)
        instant = read_time(element)
        if instant is None:
            best.setdefault("text that is no time", (None, element))
        else:
            offer("text time", instant, element)
    return [element for _, element in best.values()]


def _number_keys(elements: Iterable[Scalar]) -> frozenset[Number | str]:
    numbers = (number(element) for element in elements)
    return frozenset(number_key(read) for read in numbers if read is not None and not is_nan(read))


def _distinct(elements: Elements) -> list[Scalar]:
    """One element of each value."""
    found: dict[Any, Scalar] = {}
    for element in elements:
        read = None if type(element) is str else number(element)
        found.setdefault(element if read is None else (number_key(read),), element)
    return list(found.values())
