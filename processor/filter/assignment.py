"""Expressions that compute fields of a message, in the settings `preprocess` and `enrich`.

They have the language of filters and two words more: `PREVIOUS(…)` is a value of the stored record, and `MISSING`
leaves the field out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import ConfigurationError
from processor.filter.compile import Compiler
from processor.filter.evaluation import within_budget
from processor.filter.parse import parse, syntax_error
from processor.filter.syntax_tree import Call, If, Missing, Node, children
from processor.filter.syntax_tree import Path as PathNode
from processor.filter.value import PATH, read_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.filter.evaluation import Evaluate, Function
    from processor.record import Value

MISSING: Final = object()
"""The result that leaves a field out."""
_PREVIOUS: Final = "PREVIOUS"
_TARGET: Final = re.compile(PATH, re.DOTALL)


class PreviousRecord:
    """The stored record that `PREVIOUS` looks at; the owner sets it before each evaluation."""

    __slots__ = ("record",)

    def __init__(self) -> None:
        """Begin without a record: each path is NULL."""
        self.record: Value = {}


class Assignment(NamedTuple):
    """One computed field."""

    names: tuple[str, ...]
    """The path of the field, from the message down."""
    evaluate: Evaluate
    """Computes the value from the record and its metadata; `MISSING` leaves the field out."""
    paths: frozenset[tuple[str | int, ...]]
    """The places in the record that the expression looks at, from the record down; not those in the previous one."""


class _AssignmentCompiler(Compiler):
    """Compiles one expression of the settings."""

    def __init__(self, text: str, previous: PreviousRecord | None) -> None:
        """Begin with an expression; `previous` is None where there is no stored record."""
        super().__init__(text)
        self._previous = previous

    def result(self, node: Node) -> Evaluate:
        """The node as the result of the expression, which may be `MISSING`."""
        if isinstance(node, Missing):
            return lambda record, metadata: MISSING  # noqa: ARG005
        if isinstance(node, If):
            condition, then, otherwise = self.truth(node.condition), self.result(node.then), self.result(node.otherwise)
            return lambda record, metadata: (
                then(record, metadata) if condition(record, metadata) else otherwise(record, metadata)
            )
        return self.value(node)

    def _call(self, node: Call) -> Evaluate:
        if node.name != _PREVIOUS:
            return super()._call(node)
        if self._previous is None:
            raise syntax_error(
                self._text, node.at, "PREVIOUS is for `enrich`: `preprocess` runs before the stored record is known"
            )
        if len(node.arguments) != 1:
            raise syntax_error(self._text, node.at, "PREVIOUS takes 1 argument, such as PREVIOUS(/px)")
        previous, value = self._previous, self.value(node.arguments[0])
        return lambda record, metadata: value(previous.record, metadata)  # noqa: ARG005

    def _function(self, node: Call) -> Function:
        function = super()._function(node)
        if function.takes == "metadata" and not function.moves_by_itself:
            raise syntax_error(
                self._text, node.at, f"{node.name} is for filters: a message has no metadata before it is merged"
            )
        return function


def compile_assignments(fields: Mapping[str, str], previous: PreviousRecord | None = None) -> list[Assignment]:
    """Compile computed fields.

    Args:
        fields: by the path of each field its expression.
        previous: the stored record, for `PREVIOUS`; None: the word is refused.

    Raises:
        ConfigurationError: a path or an expression is wrong; the message begins with the field and shows the place.
    """
    if not fields:
        raise ConfigurationError("it computes no field; write one such as {/total: '/qty * /px'}")
    assignments = []
    for field, text in fields.items():
        names = read_path(field) if _TARGET.fullmatch(field) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(f"{field!r} is no path of a field such as /total or /sums/qty")
        if not isinstance(text, str):
            raise ConfigurationError(
                f"{field}: {text!r} is no expression; write a text in quotes, such as '/qty * /px'"
            )
        try:
            tree = parse(text)
            compiler = _AssignmentCompiler(text, previous)
            evaluate = compiler.result(tree)
            if not isinstance(tree, Missing):
                evaluate = within_budget(evaluate, compiler.steps(tree))
        except ConfigurationError as error:
            raise ConfigurationError(f"{field}: {error}") from None
        assignments.append(Assignment(tuple(map(str, names)), evaluate, frozenset(_paths(tree))))
    return assignments


def _paths(node: Node) -> Iterator[tuple[str | int, ...]]:
    """The places in the record itself, not in the previous one."""
    if isinstance(node, PathNode):
        yield node.parts
    if isinstance(node, Call) and node.name == _PREVIOUS:
        return
    for child in children(node):
        yield from _paths(child)
