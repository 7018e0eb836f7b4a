"""Compares typed numbers with a constant by the digits in the record, though the type may have rounded them.

Rounding keeps the order, so the rounded number usually decides. Only where it is equal or next to the constant, Spark
reads the record's own digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Final, NamedTuple, cast

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from processor.filter.compare import MIRRORED, OPERATORS
from processor.filter.syntax_tree import Arithmetic, Comparison, Constant, Negative, Node, Path, Scalar
from processor.filter.value import number
from spark_integration.filter.resolved_path import Check, ResolvedPath, RowColumns, resolve_path
from spark_integration.foundation.sql import TINY_NUMBER

_LARGEST: Final[dict[type[DataType], int]] = {
    BooleanType: 1,
    ByteType: 2**7 - 1,
    ShortType: 2**15 - 1,
    IntegerType: 2**31 - 1,
    LongType: 2**63 - 1,
}

WHOLE: Final[tuple[type[DataType], ...]] = tuple(_LARGEST)
"""Types that hold exactly the number in the record: Spark rejects every other value for them."""

NUMBERS: Final[tuple[type[DataType], ...]] = (*WHOLE, FloatType, DoubleType, DecimalType)
"""Types whose values are never NULL in a filter, unless they are missing."""

_DIGITS: Final = 38
"""Digits of Spark's longest decimal."""
_CONTEXT: Final = Context(prec=400)
"""A decimal context with enough digits for every float."""


def comparing(name: Comparison, constant: Scalar, place: ResolvedPath) -> Check | None:
    """Compare the numbers of a path with a constant, not NULL; None where Spark SQL has no exact equivalent."""
    kind, value = place.type, number(constant)
    if not isinstance(kind, NUMBERS):
        return None
    if value is None:
        # A text that is no number is greater than every number.
        return lambda found, source: _known(OPERATORS[name](0, 1), found)  # noqa: ARG005
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not exact.is_finite():
        return None
    if isinstance(kind, WHOLE):
        return _comparing_whole(name, exact, kind)
    if isinstance(kind, DoubleType) and place.names is not None:
        return _comparing_double(name, exact, place.names)
    if isinstance(kind, DecimalType) and place.names is not None:
        return _comparing_decimal(name, exact, kind, place.names)
    return None


def compare_whole(name: Comparison, found: Column, exact: Decimal, kind: DataType, largest: int) -> Column:
    """Compare whole numbers with any number.

    Args:
        name: the comparison.
        found: the whole numbers, null where a record has none.
        exact: the number to compare with.
        kind: their type.
        largest: the largest possible whole number; the smallest is its negative, or one less.
    """
    low, high = math.floor(exact), math.ceil(exact)
    # Never with what the type does not hold: Spark 4.0.0 takes null < 9223372036854775808 for true.
    if low < -largest - 1 or high > largest or (name in ("=", "!=") and low != high):
        return _known(OPERATORS[name](0, exact), found)
    return compared(name, found, F.lit(Decimal(low if name in (">", "<=") else high)).cast(kind))


def _comparing_whole(name: Comparison, exact: Decimal, kind: DataType) -> Check:
    largest = _LARGEST[type(kind)]

    def check(found: Column, source: RowColumns) -> Column:  # noqa: ARG001
        whole = found.cast("int") if isinstance(kind, BooleanType) else found
        return compare_whole(name, whole, exact, IntegerType() if isinstance(kind, BooleanType) else kind, largest)

    return check


def _comparing_double(name: Comparison, exact: Decimal, names: tuple[str, ...]) -> Check | None:
    near = float(exact)
    as_written = _as_written(name, exact, names)
    if math.isinf(near) or as_written is None:
        return None
    problem = (
        f"a record has no finite number at /{'/'.join(names)}, where the schema says DOUBLE, so that a filter cannot "
        "tell what it is: correct the schema, or filter without it"
    )

    def check(found: Column, source: RowColumns) -> Column:
        # Spark makes infinity of a number beyond doubles, and of the text 'Infinity' as well.
        is_strange = F.isnan(found) | (F.abs(found) == math.inf)
        return (
            F.when(is_strange, F.raise_error(problem).cast("boolean"))
            .when(found == near, as_written(source))
            .otherwise(compared(name, found, F.lit(near)))
        )

    return check


def _comparing_decimal(name: Comparison, exact: Decimal, kind: DecimalType, names: tuple[str, ...]) -> Check | None:
    step = Decimal(1).scaleb(-kind.scale)
    low, high = (exact.quantize(step, rounding, _CONTEXT) for rounding in (ROUND_FLOOR, ROUND_CEILING))
    as_written = _as_written(name, exact, names)
    # Both of the column's own type, for the same reason as above.
    if max(abs(low), abs(high)) >= Decimal(10) ** (kind.precision - kind.scale) or as_written is None:
        return None

    def check(found: Column, source: RowColumns) -> Column:
        below, above = F.lit(low).cast(kind), F.lit(high).cast(kind)
        is_near = (found == below) | (found == above)
        return F.when(is_near, as_written(source)).otherwise(compared(name, found, below))

    return check


def _as_written(name: Comparison, exact: Decimal, names: tuple[str, ...]) -> Callable[[RowColumns], Column] | None:
    """Compare with all digits of the record; None where Spark's longest decimal has too few."""
    whole_digits = max(exact.adjusted() + 1, 1)
    scale = _DIGITS - whole_digits - 1
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or scale < 0 or -exponent > scale - 1:
        return None
    long_number = _long_number(names[-1], max(scale + exact.adjusted() + 1, 1))
    kind: DataType = DecimalType(_DIGITS, scale)
    for member in reversed(names):
        kind = StructType([StructField(member, kind)])
    problem = (
        f"a record's number at /{'/'.join(names)} has more digits than Spark can compare: filter without the schema"
    )

    def compare(source: RowColumns) -> Column:
        # Of a tiny number a decimal would have hundreds of megabytes.
        text = F.when(~source.value.rlike(TINY_NUMBER), source.value)
        found = F.from_json(text, kind)  # type: ignore[arg-type]
        for member in names:
            found = found.getField(member)
        constant = F.lit(exact.quantize(Decimal(1).scaleb(-scale), None, _CONTEXT))
        found = F.when(~source.value.rlike(long_number), found)
        return F.coalesce(compared(name, found, constant), F.raise_error(problem).cast("boolean"))

    return compare


def _long_number(name: str, digits_max: int) -> str:
    """The pattern of a member with a number of more digits than Spark keeps, without zeros in front."""
    member = json.dumps(name, ensure_ascii=False).replace("\\E", r"\E\\E\Q")
    more = rf"(?:[0-9]{{{digits_max},}}|(?=[0-9]*\.)[0-9.]{{{digits_max + 1},}})"
    return rf"\Q{member}\E\s*:\s*-?[0.]*[1-9]{more}"


def _known(verdict: bool, found: Column) -> Column:
    """A constant result for every value that is not null."""
    return found.isNotNull() & F.lit(verdict)


def compared(name: Comparison, one: Column, other: Column) -> Column:
    """Compare two columns."""
    return cast("Column", OPERATORS[name](one, other))


_LARGEST_WHOLE: Final = 10**37
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
        case Constant(value=int() as constant) if abs(constant) <= _LARGEST_WHOLE:
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
    if largest > _LARGEST_WHOLE:
        return None

    def column(source: RowColumns) -> Column:
        one, other = left.column(source), right.column(source)
        if node.operator == "*":
            return one * other
        return one + other if node.operator == "+" else one - other

    return Whole(column, largest)
