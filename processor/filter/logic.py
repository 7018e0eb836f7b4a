"""Three-valued logic after SQL-92: truth values, and AND, OR and NOT as functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from processor.filter.cost import CONVERSION_STEPS
from processor.filter.path import Evaluate
from processor.filter.record_metadata import RecordMetadata
from processor.filter.syntax_tree import Scalar
from processor.filter.time_value import Time
from processor.filter.value import elements, read_number
from processor.record import Value

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

    def check(record: Value, metadata: RecordMetadata) -> Truth:
        result: Truth = True
        for operand in operands:
            value = operand(record, metadata)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return check


def either(operands: Sequence[Evaluate]) -> Evaluate:
    """OR: one that is true decides, else one that is NULL."""

    def check(record: Value, metadata: RecordMetadata) -> Truth:
        result: Truth = False
        for operand in operands:
            value = operand(record, metadata)
            if value is True:
                return True
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
