"""The predicates, and AND, OR and NOT after SQL-92, each as a function made for its operands.

A predicate is true or false, never NULL. Every record of a topic comes through here, so what is asked most, a field at
the top beside constants, is decided by a look at the value's type; all other cases go the general way, which gives the
same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from processor.filter.compare import OPERATORS, PAIRS_MAX, any_pair, comparison, extremes, is_plain, members
from processor.filter.evaluation import Evaluate, RecordMetadata
from processor.filter.limits import CONVERSION_STEPS, FREE_STEPS, PREPARATION_STEPS, SEARCH_STEPS, lookup_steps
from processor.filter.syntax_tree import Comparison, Scalar
from processor.filter.value import elements, is_nan, read_number, text_of
from processor.record import Value
from processor.values.instant import Time

Truth: TypeAlias = bool | None
"""A truth value; None is NULL."""

_WORDS: Final = {"true": True, "false": False}


def truth(value: Value, metadata: RecordMetadata) -> Truth:
    """A value as a truth value; of an array whether any element is true."""
    if value is True or value is False:
        return value
    found: Truth = None
    if type(value) is list:
        metadata.spend(len(value) * CONVERSION_STEPS)
    for element in elements(value, metadata):
        one = _truth(element)
        if one:
            return True
        if one is False:
            found = False
    return found


def _truth(value: Scalar) -> Truth:
    """A scalar: a number is true unless it is 0; `true` and `false` are words of message types that have only texts."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = _WORDS.get(value.lower()) if len(value) <= 5 else None
        if word is not None:
            return word
        value = read_number(value)
    if value is None or type(value) is Time or value != value:  # noqa: PLR0124 - it is how NaN is told
        return None
    return value != 0


def all_hold(tests: Sequence[Evaluate]) -> Evaluate:
    """AND of operands that are never NULL."""
    if len(tests) == 2:
        one, other = tests
        return lambda record, metadata: one(record, metadata) and other(record, metadata)

    def check(record: Value, metadata: RecordMetadata) -> bool:
        for test in tests:  # noqa: SIM110 - a generator would take as long as a test
            if not test(record, metadata):
                return False
        return True

    return check


def any_holds(tests: Sequence[Evaluate]) -> Evaluate:
    """OR of operands that are never NULL."""
    if len(tests) == 2:
        one, other = tests
        return lambda record, metadata: one(record, metadata) or other(record, metadata)

    def check(record: Value, metadata: RecordMetadata) -> bool:
        for test in tests:  # noqa: SIM110 - as above
            if test(record, metadata):
                return True
        return False

    return check


def does_not_hold(test: Evaluate) -> Evaluate:
    """NOT of an operand that is never NULL."""
    return lambda record, metadata: not test(record, metadata)


def both(operands: Sequence[Evaluate]) -> Evaluate:
    """AND: one that is false decides, else one that is NULL."""
    return _decided_by(operands, decisive=False)


def either(operands: Sequence[Evaluate]) -> Evaluate:
    """OR: one that is true decides, else one that is NULL."""
    return _decided_by(operands, decisive=True)


def _decided_by(operands: Sequence[Evaluate], *, decisive: bool) -> Evaluate:
    def check(record: Value, metadata: RecordMetadata) -> Truth:
        result: Truth = not decisive
        for operand in operands:
            value: Truth = operand(record, metadata)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return check


def negation(operand: Evaluate) -> Evaluate:
    """NOT: of NULL it is NULL."""

    def check(record: Value, metadata: RecordMetadata) -> Truth:
        value = operand(record, metadata)
        return None if value is None else not value

    return check


Check: TypeAlias = Callable[[Value, RecordMetadata], bool]
"""True if a value is as wanted, of any kind: what a predicate with constants is to its operand."""

_FREE_SIZES: Final = (2_000, 1_000, 500, 250, 100, 50, 20)
"""Lengths of texts of which the longest that costs next to nothing is searched without being counted."""

_ALIKE: Final = (int, float)
"""The kinds that Python compares with a plain number just as the language does."""


def on(operand: Evaluate, check: Check) -> Evaluate:
    """A check of an operand's value."""
    return lambda record, metadata: check(operand(record, metadata), metadata)


def compare_member(name: Comparison, member: str, constant: Scalar) -> Evaluate:
    """A field at the top compared with a constant."""
    holds, check = OPERATORS[name], compare_with(name, constant)
    if type(constant) is str and constant:

        def of_text(record: Value, metadata: RecordMetadata) -> bool:
            value = record.get(member)
            return holds(value, constant) if type(value) is str and value else check(value, metadata)

        return of_text
    if is_plain(constant):

        def of_number(record: Value, metadata: RecordMetadata) -> bool:
            value = record.get(member)
            kind = type(value)
            return holds(value, constant) if kind is int or kind is float else check(value, metadata)

        return of_number
    return lambda record, metadata: check(record.get(member), metadata)


def compare_with(name: Comparison, constant: Scalar) -> Check:
    """A comparison with a constant: any element."""
    holds, at_once = comparison(name), OPERATORS[name]
    if constant is None or constant == "":
        return lambda value, metadata: False  # noqa: ARG005
    alike = _ALIKE if is_plain(constant) else (str,) if type(constant) is str else ()

    def check(value: Value, metadata: RecordMetadata) -> bool:
        kind = type(value)
        if kind in alike:
            return value != "" and at_once(value, constant)
        if kind is str:
            return bool(value) and holds(value, constant)
        found = elements(value, metadata)
        is_counted = len(found) < 2
        for element in found:
            if type(element) in alike:
                if at_once(element, constant):
                    return True
                continue
            if not is_counted:
                is_counted = True
                metadata.spend(len(found) * CONVERSION_STEPS)
            if holds(element, constant):
                return True
        return False

    return check


def compare_values(name: Comparison, left: Evaluate, right: Evaluate) -> Evaluate:
    """A comparison of two values: any element of one with any of the other."""
    holds_of_any = any_pair(name)

    def check(record: Value, metadata: RecordMetadata) -> bool:
        return holds_of_any(
            elements(left(record, metadata), metadata), elements(right(record, metadata), metadata), metadata
        )

    return check


def between(operand: Evaluate, low: Evaluate, high: Evaluate) -> Evaluate:
    """Return whether an element lies between two values, both included."""
    not_less, not_more = comparison(">="), comparison("<=")

    def check(record: Value, metadata: RecordMetadata) -> bool:
        found = elements(operand(record, metadata), metadata)
        lows, highs = elements(low(record, metadata), metadata), elements(high(record, metadata), metadata)
        if len(found) > 1 or len(lows) > 1 or len(highs) > 1:
            metadata.spend((len(found) + len(lows) + len(highs)) * PREPARATION_STEPS)
        if len(found) * (len(lows) + len(highs)) > PAIRS_MAX:
            lows, highs = extremes(lows, highest=False), extremes(highs, highest=True)
        return any(
            any(not_less(element, least) for least in lows) and any(not_more(element, most) for most in highs)
            for element in found
        )

    return check


def between_constants(low: Scalar, high: Scalar) -> Check:
    """The same with constants."""
    if low is None or high is None or low == "" or high == "":
        return lambda value, metadata: False  # noqa: ARG005
    not_less, not_more = comparison(">="), comparison("<=")
    are_numbers = is_plain(low) and is_plain(high)

    def check(value: Value, metadata: RecordMetadata) -> bool:
        if are_numbers and type(value) in (int, float):
            return bool(low <= value <= high)
        if type(value) is list:
            metadata.spend(len(value) * CONVERSION_STEPS)
        return any(not_less(element, low) and not_more(element, high) for element in elements(value, metadata))

    return check


def among(operand: Evaluate, choices: Sequence[Evaluate]) -> Evaluate:
    """Return whether an element equals an element of any choice."""
    equals_any = any_pair("=")

    def check(record: Value, metadata: RecordMetadata) -> bool:
        wanted = elements(operand(record, metadata), metadata)
        if not wanted:
            return False
        others = [other for choice in choices for other in elements(choice(record, metadata), metadata)]
        return equals_any(wanted, others, metadata)

    return check


def among_constants(constants: Sequence[Scalar]) -> Check:
    """Return whether an element is one of the constants: looked up, however many there are."""
    texts = frozenset(constant for constant in constants if type(constant) is str and constant)
    has_texts_alone = all(type(constant) is str for constant in constants)
    is_member = members(constants)

    def check(value: Value, metadata: RecordMetadata) -> bool:
        if type(value) is str:
            return value in texts or (not has_texts_alone and bool(value) and is_member(value))
        if type(value) is list:
            metadata.spend(len(value) * CONVERSION_STEPS)
        return any(map(is_member, elements(value, metadata)))

    return check


def matching(search: Callable[[str], bool], steps: Callable[[int], int] = lookup_steps) -> Check:
    """Return whether an element, as text, is what a search looks for.

    Args:
        search: the search.
        steps: the work of a search in a text of so many characters.
    """

    def check_elements(value: Value, metadata: RecordMetadata) -> bool:
        found = elements(value, metadata)
        metadata.spend(len(found) * SEARCH_STEPS)
        texts = [text_of(element) for element in found]
        metadata.spend(sum([steps(len(text)) for text in texts]))
        return any(map(search, texts))

    if steps is lookup_steps:  # The beginning or the end of a text of any length costs next to nothing.
        return lambda value, metadata: (
            value != "" and search(value) if type(value) is str else check_elements(value, metadata)
        )
    free_characters = next(size for size in (*_FREE_SIZES, 0) if steps(size) <= FREE_STEPS)

    def check(value: Value, metadata: RecordMetadata) -> bool:
        if type(value) is str:
            if (size := len(value)) > free_characters:
                metadata.spend(steps(size))
            return size > 0 and search(value)
        return check_elements(value, metadata)

    return check


def beginning(texts: Sequence[str]) -> Check:
    """Return whether an element begins with one of the texts; an empty one is NULL, with which nothing begins."""
    known = tuple(filter(None, texts))
    return matching(lambda text: text.startswith(known))


def ending(texts: Sequence[str]) -> Check:
    """Return whether an element ends with one of the texts, likewise."""
    known = tuple(filter(None, texts))
    return matching(lambda text: text.endswith(known))


def null(value: Value, metadata: RecordMetadata) -> bool:
    """Return whether a value is NULL: of an array, whether it has no element that is not."""
    return not value if type(value) is str else value is None or not elements(value, metadata)


def not_a_number(value: Value, metadata: RecordMetadata) -> bool:
    """Return whether an element is NAN."""
    return any(map(is_nan, elements(value, metadata)))
