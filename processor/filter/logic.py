"""AND, OR and NOT as functions: of predicates, which are never NULL, and of anything, after SQL-92."""

from __future__ import annotations

from collections.abc import Sequence

from processor.filter.path import Evaluate
from processor.filter.record_metadata import Facts
from processor.filter.truth import Truth
from processor.record import Value


def all_hold(tests: Sequence[Evaluate]) -> Evaluate:
    """AND of what is never NULL."""
    if len(tests) == 2:
        one, other = tests
        return lambda record, facts: one(record, facts) and other(record, facts)

    def check(record: Value, facts: Facts) -> bool:
        for test in tests:  # noqa: SIM110 - a generator would take as long as a test
            if not test(record, facts):
                return False
        return True

    return check


def any_holds(tests: Sequence[Evaluate]) -> Evaluate:
    """OR of what is never NULL."""
    if len(tests) == 2:
        one, other = tests
        return lambda record, facts: one(record, facts) or other(record, facts)

    def check(record: Value, facts: Facts) -> bool:
        for test in tests:  # noqa: SIM110 - as above
            if test(record, facts):
                return True
        return False

    return check


def does_not_hold(test: Evaluate) -> Evaluate:
    """NOT of what is never NULL."""
    return lambda record, facts: not test(record, facts)


def both(truths: Sequence[Evaluate]) -> Evaluate:
    """AND: one that is false decides, else one that is NULL."""

    def check(record: Value, facts: Facts) -> Truth:
        result: Truth = True
        for truth in truths:
            found = truth(record, facts)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return check


def either(truths: Sequence[Evaluate]) -> Evaluate:
    """OR: one that is true decides, else one that is NULL."""

    def check(record: Value, facts: Facts) -> Truth:
        result: Truth = False
        for truth in truths:
            found = truth(record, facts)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return check


def negation(truth: Evaluate) -> Evaluate:
    """NOT: of NULL it is NULL."""

    def check(record: Value, facts: Facts) -> Truth:
        found = truth(record, facts)
        return None if found is None else not found

    return check
