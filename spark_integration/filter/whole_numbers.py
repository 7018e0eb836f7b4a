"""Compares sums, differences and products of whole numbers that Spark computes without rounding."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, DecimalType, StructType

from processor.filter.compare import MIRRORED
from processor.filter.syntax_tree import Arithmetic, Comparison, Constant, Negative, Node, Path
from processor.filter.value import number
from spark_integration.filter.number_check import WHOLE, compare_whole, compared
from spark_integration.filter.resolved_path import RowColumns, resolve_path

_LARGEST: Final = 10**37
"""Spark's longest decimal holds any whole number up to here."""
_KIND: Final = DecimalType(38, 0)


class Whole(NamedTuple):
    """A whole number that is computed from a record."""

    column: Callable[[RowColumns], Column]
    """The number as a decimal, null where an operand is NULL."""
    largest: int
    """Upper bound of its absolute value."""


def compare_numbers(
    name: Comparison, left: Node, right: Node, schema: StructType
) -> Callable[[RowColumns], Column] | None:
    """Compare whole numbers, at least one of them from the record; None where Spark might round."""
    one, other = whole(left, schema), whole(right, schema)
    if one is None and other is not None:
        name, left, right, one, other = MIRRORED[name], right, left, other, one
    if one is None:
        return None
    computed, largest = one
    if isinstance(right, Constant) and isinstance(right.value, int | float | Decimal):
        constant = number(right.value)
        exact = Decimal(repr(constant)) if isinstance(constant, float) else Decimal(constant or 0)
        if not exact.is_finite():
            return None
        return lambda source: F.coalesce(compare_whole(name, computed(source), exact, _KIND, largest), F.lit(False))
    if other is None:
        return None
    also = other.column
    return lambda source: F.coalesce(compared(name, computed(source), also(source)), F.lit(False))


def whole(node: Node, schema: StructType) -> Whole | None:
    """A node as a whole number; None where it may be of another type, or too large."""
    match node:
        case Constant(value=bool()):
            return None
        case Constant(value=int() as constant) if abs(constant) <= _LARGEST:
            return Whole(lambda source: F.lit(Decimal(constant)).cast(_KIND), abs(constant))  # noqa: ARG005
        case Path():
            return _at(node, schema)
        case Negative():
            operand = whole(node.operand, schema)
            return None if operand is None else operand._replace(column=lambda source: -operand.column(source))
        case Arithmetic(operator="+" | "-" | "*"):
            return _computed(node, schema)
        case _:
            return None


def _at(node: Path, schema: StructType) -> Whole | None:
    place = resolve_path(node.parts, schema)
    if place is None or not place.is_single or not isinstance(place.type, WHOLE) or place.type == BooleanType():
        return None
    return Whole(lambda source: place.single(source).cast(_KIND), 2**63)


def _computed(node: Arithmetic, schema: StructType) -> Whole | None:
    left, right = whole(node.left, schema), whole(node.right, schema)
    if left is None or right is None:
        return None
    largest = left.largest * right.largest if node.operator == "*" else left.largest + right.largest
    if largest > _LARGEST:
        return None

    def column(source: RowColumns) -> Column:
        one, other = left.column(source), right.column(source)
        if node.operator == "*":
            return one * other
        return one + other if node.operator == "+" else one - other

    return Whole(column, largest)
