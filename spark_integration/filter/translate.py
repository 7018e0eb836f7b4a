"""Translates parts of a filter to Spark SQL where the result is exactly the same; the processor evaluates the others.

A part is translated when the query is planned, from the schema alone, and becomes a Column when it meets a record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, StringType, StructType

from processor.filter.compare import MIRRORED
from processor.filter.compile import Compiler
from processor.filter.evaluation import NO_METADATA
from processor.filter.syntax_tree import (
    And,
    BeginsWith,
    Between,
    Call,
    Compare,
    EndsWith,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Or,
    Path,
    Scalar,
    children,
)
from processor.filter.syntax_tree import Comparison as Name
from spark_integration.filter.number_check import NUMBERS, WHOLE, compare_numbers, compared, comparing
from spark_integration.filter.pattern import can_be_checked, of_texts, searching
from spark_integration.filter.resolved_path import Check, ResolvedPath, RowColumns, resolve_path

Truth: TypeAlias = Callable[[RowColumns], Column]
"""A part of a filter as a truth value of a record: true, false, or null."""

_CHOICES_MAX: Final = 200
"""Longest list that becomes comparisons in Spark; the processor looks up longer ones."""


def translate(node: Node, schema: StructType) -> Truth | None:
    """Translate a part of a filter to Spark SQL; None where there is no exact equivalent."""
    if _is_constant(node):
        return _constant(node)
    match node:
        case And() | Or():
            truths = [translate(operand, schema) for operand in node.operands]
            if None in truths:
                return None
            operation = and_ if isinstance(node, And) else or_
            return lambda source: reduce(operation, [truth(source) for truth in truths if truth is not None])
        case Not():
            negated = translate(node.operand, schema)
            return None if negated is None else lambda source: ~negated(source)
        case Path():
            return _truth_of_path(node, schema)
        case Compare():
            return _compare(node, schema)
        case Between() | In() | Like() | BeginsWith() | EndsWith() | IsNull():
            place = resolve_path(node.operand.parts, schema) if isinstance(node.operand, Path) else None
            return None if place is None else _predicate(node, place)
        case _:
            return None


def _is_constant(node: Node) -> bool:
    """Return whether a node has the same value for every record and at any time."""
    return not isinstance(node, Path | Call) and all(map(_is_constant, children(node)))


def _constant(node: Node) -> Truth:
    result = Compiler("").condition(node)({}, NO_METADATA)
    return lambda source: F.lit(result).cast("boolean")  # noqa: ARG005


def _value(node: Node) -> Scalar:
    """The value of a constant node."""
    scalar: Scalar = Compiler("").expression(node)({}, NO_METADATA)
    return scalar


def _truth_of_path(node: Path, schema: StructType) -> Truth | None:
    place = resolve_path(node.parts, schema)
    if place is None or not place.is_single or not isinstance(place.type, WHOLE):
        return None
    if isinstance(place.type, BooleanType):
        return place.single
    return lambda source: place.single(source) != 0


def _compare(node: Compare, schema: StructType) -> Truth | None:
    name, left, right = node.operator, node.left, node.right
    if _is_constant(left):
        name, left, right = MIRRORED[name], right, left
    if isinstance(left, Path) and _is_constant(right):
        place = resolve_path(left.parts, schema)
        check = None if place is None else _comparing(name, _value(right), place)
        return None if place is None or check is None else _any(place, check)
    return compare_numbers(name, left, right, schema) or _compare_texts(name, left, right, schema)


def _compare_texts(name: Name, left: Node, right: Node, schema: StructType) -> Truth | None:
    """Compare two text columns."""
    if not isinstance(left, Path) or not isinstance(right, Path):
        return None
    one, other = resolve_path(left.parts, schema), resolve_path(right.parts, schema)
    if one is None or other is None or not (_is_text(one) and _is_text(other) and other.is_single):
        return None

    def with_text(text: Column, source: RowColumns) -> Column:
        def with_other(found: Column, source: RowColumns) -> Column:  # noqa: ARG001
            return compared(name, text, found)

        return other.any(of_texts(other, with_other), source)

    return lambda source: one.any(of_texts(one, with_text), source)


def _any(place: ResolvedPath, check: Check) -> Truth:
    return lambda source: place.any(check, source)


def _predicate(node: Between | In | Like | BeginsWith | EndsWith | IsNull, place: ResolvedPath) -> Truth | None:
    if isinstance(node, IsNull):
        return _is_null(place)
    check: Check | None = None
    match node:
        case Between():
            check = _between(node, place)
        case In():
            check = _among(node, place)
        case Like() if _is_text(place):
            search = searching(node.pattern)
            check = None if search is None else of_texts(place, lambda text, source: search(text))  # noqa: ARG005
        case BeginsWith() if _is_text(place):
            check = of_texts(place, _one_of(node.texts, Column.startswith))
        case EndsWith() if _is_text(place):
            check = of_texts(place, _one_of(node.texts, Column.endswith))
    return None if check is None else _any(place, check)


def _is_null(place: ResolvedPath) -> Truth | None:
    if isinstance(place.type, StructType):
        return lambda source: F.lit(True)  # noqa: ARG005 - an object is NULL
    if _is_text(place):
        is_there = of_texts(place, lambda text, source: F.lit(True))  # noqa: ARG005
        return lambda source: ~place.any(is_there, source)
    if not isinstance(place.type, NUMBERS):
        return None
    return lambda source: ~place.any(lambda found, source: found.isNotNull(), source)  # noqa: ARG005


def _between(node: Between, place: ResolvedPath) -> Check | None:
    if not _is_constant(node.low) or not _is_constant(node.high):
        return None
    return _all_of(_comparing(">=", _value(node.low), place), _comparing("<=", _value(node.high), place))


def _among(node: In, place: ResolvedPath) -> Check | None:
    if len(node.choices) > _CHOICES_MAX or not all(map(_is_constant, node.choices)):
        return None
    constants = [constant for choice in node.choices if (constant := _value(choice)) is not None and constant != ""]
    if _is_text(place) and all(isinstance(constant, str) for constant in constants):
        return of_texts(place, lambda text, source: text.isin(constants))  # noqa: ARG005
    checks = [_comparing("=", constant, place) for constant in constants]
    if None in checks:
        return None
    translated = [check for check in checks if check is not None]
    return lambda found, source: reduce(or_, [check(found, source) for check in translated], F.lit(False))


def _comparing(name: Name, constant: Scalar, place: ResolvedPath) -> Check | None:
    """Compare with a constant; None where Spark SQL has no exact equivalent."""
    if constant is None or constant == "":
        return lambda found, source: F.lit(False)  # noqa: ARG005
    if not isinstance(place.type, StringType):
        return comparing(name, constant, place)
    if not _is_text(place) or not isinstance(constant, str):
        return None
    return of_texts(place, lambda text, source: compared(name, text, F.lit(constant)))  # noqa: ARG005


def _is_text(place: ResolvedPath) -> bool:
    """Return whether a path leads to texts that are compared by their characters, not by another collation."""
    return type(place.type) is StringType and place.type == StringType() and can_be_checked(place)


def _one_of(texts: tuple[str, ...], holds: Callable[[Column, Column], Column]) -> Check:
    nonempty = list(filter(None, texts))
    return lambda found, source: reduce(or_, [holds(found, F.lit(text)) for text in nonempty], F.lit(False))  # noqa: ARG005


def _all_of(one: Check | None, other: Check | None) -> Check | None:
    if one is None or other is None:
        return None
    return lambda found, source: one(found, source) & other(found, source)
