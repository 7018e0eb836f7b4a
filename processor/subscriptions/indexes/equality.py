"""Finds the conditions of a filter that an index can look up: paths at which every match has one of some values."""

from __future__ import annotations

from typing import TypeAlias

from processor.filter.compare import as_written, is_plain
from processor.filter.syntax_tree import And, Compare, Constant, In, Node, Or, Path, Scalar
from processor.filter.value import Number, is_nan, number
from processor.values.instant import Instant, Time, read_time

Parts: TypeAlias = tuple[str | int, ...]
"""A path, as the tree has it."""

NumberKey: TypeAlias = Number | tuple[Number]
"""The key of a number in a table: the number itself, or alone in a tuple if no float is written as it is."""


def required_values(node: Node) -> dict[Parts, tuple[Scalar, ...]]:
    """Paths at which a record that matches has one of some values."""
    match node:
        case Compare("=", Path(parts), Constant(value)) | Compare("=", Constant(value), Path(parts)):
            return {parts: (value,)}
        case In(Path(parts), choices):
            constants = tuple(choice.value for choice in choices if isinstance(choice, Constant))
            return {parts: constants} if len(constants) == len(choices) else {}
        case And(operands):
            # Of an array different elements may satisfy each operand: one of two conditions stays, not what both say.
            required: dict[Parts, tuple[Scalar, ...]] = {}
            for operand in operands:
                for parts, values in required_values(operand).items():
                    if parts not in required or len(values) < len(required[parts]):
                        required[parts] = values
            return required
        case Or(operands):
            first, *others = map(required_values, operands)
            return {
                parts: values + tuple(value for other in others for value in other[parts])
                for parts, values in first.items()
                if all(parts in other for other in others)
            }
        case _:
            return {}


def element_keys(element: Scalar) -> tuple[NumberKey | Instant, ...]:
    """The key of a number, of a text that is one, or of a time of a record in a table; empty for other values."""
    if type(element) is Time:
        return (element.instant,)
    read = number(element)
    return () if read is None or is_nan(read) else (number_key(read),)


def constant_keys(constant: Scalar) -> tuple[NumberKey | Instant, ...]:
    """The same of a value in a filter, whose texts are equal to the times that they name, too."""
    keys = element_keys(constant)
    instant = read_time(constant) if type(constant) is str else None
    return keys if instant is None else (*keys, instant)


def number_key(value: Number) -> NumberKey:
    """The key of a number in a table: two numbers have the same key exactly where the filter language has them equal.

    A float is equal to others by its decimal text (`as_written`), but Python finds it in a table by its value: it would
    find the float 0.1 under the Decimal of all its 55 digits. So a number that is written as a float is has the float
    for its key, and a number that no float is written as has a key that no float is equal to.
    """
    if type(value) is float or is_plain(value):
        return value
    try:
        near = float(value)
    except OverflowError:
        return (value,)
    exact, written = as_written(value, near)
    return near if exact == written else (value,)
