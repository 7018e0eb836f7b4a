"""The budget of an evaluation: how much work a filter may do on one record.

Counting would slow every filter down, and nearly none needs it. So an evaluation begins without: each operator and
function may take a little work (`RecordMetadata.spend`). Where one asks for more, as for a long array, the evaluation
is given up and begins again with `CountedMetadata`, which adds all work up. Filters of many operators are counted from
the beginning.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from processor.filter.limits import COUNTED_FROM_STEPS, MADE_CHARACTERS_MAX, STEPS_MAX
from processor.filter.record_metadata import OverBudget, RecordMetadata

if TYPE_CHECKING:
    from processor.filter.path import Evaluate
    from processor.record import Value

_STEP_CHARACTERS: Final = 64
"""Characters that are made in one step."""


class CountedMetadata(RecordMetadata):
    """The metadata of a record for one evaluation, with the work that is left."""

    steps_left: int
    characters_left: int

    def spend(self, steps: int) -> None:
        """Take steps of the budget.

        Raises:
            OverBudget: there are not so many left.
        """
        self.steps_left -= steps
        if self.steps_left < 0:
            raise OverBudget

    def make(self, characters: int) -> None:
        """Take characters of the budget, likewise."""
        self.characters_left -= characters
        if self.characters_left < 0:
            raise OverBudget
        self.spend(characters // _STEP_CHARACTERS)


class _Exceeded(threading.local):
    """The number of evaluations of this thread that were over their budget."""

    count = 0


_exceeded: Final = _Exceeded()


def evaluate(compiled: Evaluate, record: Value, metadata: RecordMetadata) -> Value:
    """Evaluate a filter or an expression, and count its work; NULL if it is over its budget."""
    counted = CountedMetadata(*metadata)
    counted.steps_left, counted.characters_left = STEPS_MAX, MADE_CHARACTERS_MAX
    try:
        return compiled(record, counted)
    except OverBudget:
        _exceeded.count += 1
        return None


def within_budget(compiled: Evaluate, steps: int) -> Evaluate:
    """Return a filter or an expression as a function that never takes more than its budget.

    Args:
        compiled: the function.
        steps: its work on an ordinary record.
    """
    if steps > COUNTED_FROM_STEPS:
        return lambda record, metadata: evaluate(compiled, record, metadata)

    def call(record: Value, metadata: RecordMetadata) -> Value:
        try:
            return compiled(record, metadata)
        except OverBudget:
            return evaluate(compiled, record, metadata)

    return call


def exceeded() -> int:
    """Return the number of evaluations of this thread that were over their budget, ever: it grows with each."""
    return _exceeded.count
