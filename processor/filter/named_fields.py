"""The fields and functions that a text of the filter language names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.filter.parse import parse
from processor.filter.syntax_tree import JOINED_MARK, Call, Node, Path, children

if TYPE_CHECKING:
    from collections.abc import Iterator


class NamedField(NamedTuple):
    """A field, as one place of a text names it."""

    topic: str | None
    """The joined topic whose record has it; None: the text's own record."""
    member: str
    """The member of the record in which it is."""
    at: int
    """The place, in characters from 0."""


def named_fields(text: str) -> list[NamedField]:
    """Return the fields that a filter or an expression names, in order.

    Raises:
        FilterError: it cannot be parsed.
    """
    return [
        NamedField(first.removeprefix(JOINED_MARK), str(rest[0]), path.at)
        if first.startswith(JOINED_MARK)
        else NamedField(None, first, path.at)
        for path in _paths(parse(text))
        for first, *rest in [tuple(map(str, path.parts))]
    ]


def called_functions(text: str) -> set[str]:
    """Return the names of the functions that a filter or an expression calls, in capitals.

    Raises:
        FilterError: it cannot be parsed.
    """
    return set(_called(parse(text)))


def _called(node: Node) -> Iterator[str]:
    if isinstance(node, Call):
        yield node.name
    for child in children(node):
        yield from _called(child)


def _paths(node: Node) -> Iterator[Path]:
    if isinstance(node, Path):
        yield node
    for child in children(node):
        yield from _paths(child)
