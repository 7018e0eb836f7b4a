"""Compares the elements of two arrays without trying every pair: an array of a record may have any length.

The answers are those of trying every pair. For `=` the elements of one side are looked up by hash; for `<` and its like
a few elements of each side decide; for `!=` equal elements count once, and soon there is a pair that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

from processor.filter.compare import as_written, comparison
from processor.filter.cost import CONVERSION_STEPS, PREPARATION_STEPS, lookup_steps
from processor.filter.limits import DIGITS_MAX
from processor.filter.record_metadata import RecordMetadata
from processor.filter.syntax_tree import Comparison, Scalar
from processor.filter.time_value import Time, read_time
from processor.filter.value import Number, is_nan, number

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
