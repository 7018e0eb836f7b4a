"""The evaluation of a compiled filter: the metadata of a record, paths, functions, and the budget of the work.

Counting would slow every filter down, and nearly none needs it. So an evaluation begins without: each operator and
function may take a little work (`RecordMetadata.spend`). Where one asks for more, as for a long array, the evaluation
is given up and begins again with `CountedMetadata`, which adds all work up. Filters of many operators are counted from
the beginning.

Where an array is on the way of a path, every element of it is gone through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from processor.filter.limits import (
    COUNTED_FROM_STEPS,
    FEW_ELEMENTS,
    FREE_CHARACTERS,
    FREE_STEPS,
    MADE_CHARACTERS_MAX,
    STEPS_MAX,
)
from processor.record import Value


class OverBudget(Exception):
    """An evaluation takes more work than it may; of one that is not counted yet, more than may go uncounted."""


class RecordMetadata(NamedTuple):
    """The metadata of one record; fields left out are NULL."""

    message_bytes: int | None = None
    """Length of the encoded record, for MESSAGE_SIZE."""
    sow_key: str = ""
    """Its key as text, for SOW_KEY."""
    topic: str = ""
    """The topic's name, as settings have it, for TOPIC_NAME."""
    correlation_id: str = ""
    """The publisher's, for CORRELATION_ID."""
    last_updated_ms: int | None = None
    """Time of its last change, milliseconds since the epoch, for LAST_UPDATED."""
    now_ms: int | None = None
    """The time of UNIX_TIMESTAMP; None: the wall clock."""

    def spend(self, steps: int) -> None:
        """Take steps of the evaluation's budget. Here none are counted, and few may be taken at once.

        Raises:
            OverBudget: evaluate again, and count (`evaluate`).
        """
        if steps > FREE_STEPS:
            raise OverBudget

    def make(self, characters: int) -> None:
        """Take characters of the evaluation's budget, for a text that is made; likewise."""
        if characters > FREE_CHARACTERS:
            raise OverBudget


NO_METADATA: Final = RecordMetadata()
"""No metadata: every field is NULL."""


class _Uncounted(RecordMetadata):
    """No budget."""

    def spend(self, steps: int) -> None:
        """Count nothing."""

    def make(self, characters: int) -> None:
        """Count nothing."""


UNCOUNTED: Final = _Uncounted()
"""For a path alone, which takes no more time than its record was read in."""

Evaluate: TypeAlias = Callable[[Value, RecordMetadata], Value]
"""The compiled form of a part of a filter: a function of the record, an object, and of its metadata."""

_MISSING: Final = object()


def compile_path(parts: tuple[str | int, ...]) -> Evaluate:
    """The path as a function: what is there, just as it is, or None."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return _member(parts[0])
    if all(isinstance(part, str) for part in parts):
        return _members(parts)  # type: ignore[arg-type]

    def find(record: Value, metadata: RecordMetadata) -> Value:
        value = record
        for part in parts:
            value = _at(value, part) if isinstance(part, int) else _below(value, part, metadata)
        return value

    return find


def _member(name: str) -> Evaluate:
    return lambda record, metadata: record.get(name)  # noqa: ARG005


def _members(names: tuple[str, ...]) -> Evaluate:
    def find(record: Value, metadata: RecordMetadata) -> Value:
        value = record
        for name in names:
            value = value.get(name) if type(value) is dict else _below(value, name, metadata)
        return value

    return find


def _below(value: Value, name: str, metadata: RecordMetadata) -> Value:
    """The member of an object; of an array of objects the array of all their members of that name.

    Each element of the array is a step of the evaluation's budget.
    """
    if isinstance(value, dict):  # Of a class of its own where it replaces whole.
        return value.get(name)
    if type(value) is not list:
        return None
    if len(value) > FEW_ELEMENTS:
        metadata.spend(len(value))
    found: list[Value] = []
    pending = value[::-1]
    while pending:
        element = pending.pop()
        if type(element) is list:
            metadata.spend(len(element) + 1)
            pending.extend(reversed(element))
        elif isinstance(element, dict) and (member := element.get(name, _MISSING)) is not _MISSING:
            # Arrays in arrays make one array.
            if type(member) is list:
                metadata.spend(len(member) // 8)
                found.extend(member)
            else:
                found.append(member)
    return found


def _at(value: Value, index: int) -> Value:
    """An element of an array; a value that is no array is its own element 0."""
    if type(value) is list:
        return value[index] if index < len(value) else None
    return value if index == 0 else None


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


class _OverBudget(threading.local):
    """The evaluations of this thread that were over their budget."""

    evaluations = 0
    """Their number, ever: it grows with each."""


over_budget: Final = _OverBudget()
"""Counts the evaluations of the calling thread that were over their budget."""


def evaluate(compiled: Evaluate, record: Value, metadata: RecordMetadata) -> Value:
    """Evaluate a filter or an expression, and count its work; NULL if it is over its budget."""
    counted = CountedMetadata(*metadata)
    counted.steps_left, counted.characters_left = STEPS_MAX, MADE_CHARACTERS_MAX
    try:
        return compiled(record, counted)
    except OverBudget:
        over_budget.evaluations += 1
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


@dataclass(frozen=True, slots=True)
class Function:
    """One function, built in or not."""

    name: str
    """Its name, in capitals."""
    call: Callable[..., Value]
    """The function itself."""
    least: int
    """Fewest arguments."""
    most: int | None
    """Most arguments; None: any number."""
    takes: str = "scalars"
    """Its arguments: `scalars`, then NULL gives NULL without a call; `nulls`, scalars of which some may be NULL;
    `arrays`, values as they are in the record; `metadata`, the metadata of the record."""
    moves_by_itself: bool = False
    """True if its value may be another one although nothing changed."""
    is_counted: bool = False
    """True if its work depends on the lengths of its arguments: the metadata, with the budget, come before them."""

    def arity(self) -> str:
        """The number of arguments it takes, in words."""
        if self.most is None:
            return f"{self.least} or more arguments"
        if self.least == self.most:
            return f"{self.least or 'no'} argument{'' if self.least == 1 else 's'}"
        return f"{self.least} {'or' if self.most == self.least + 1 else 'to'} {self.most} arguments"
