"""Resolves a path in the schema of a typed record, and checks the values at it.

A path through arrays leads to all of their elements; a check is true if it is true of any element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

ELEMENTS: Final = "[*]"
"""The step from an array to its elements."""

Step: TypeAlias = str | int
"""One step down from a value: a member's name, an element's number, or `ELEMENTS`; no member may be called so."""


class RowColumns(NamedTuple):
    """One record, in both of its forms."""

    record: Column
    """As a struct."""
    value: Column
    """As JSON text, for details that the struct has lost."""


Check: TypeAlias = Callable[[Column, RowColumns], Column]
"""A test of a scalar: true, false, or null where there is none."""


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """The target of a path: one value, or the elements of arrays."""

    steps: tuple[tuple[Step, DataType], ...]
    """Each step down, with the type it leads to."""

    @property
    def type(self) -> DataType:
        """The type of the values at the path."""
        return self.steps[-1][1]

    @property
    def is_single(self) -> bool:
        """True if the path leads to one value, through no array."""
        return all(step != ELEMENTS for step, _ in self.steps)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The member names of the path; None where it goes through an array."""
        names = tuple(step for step, _ in self.steps if isinstance(step, str) and step != ELEMENTS)
        return names if len(names) == len(self.steps) else None

    def single(self, source: RowColumns) -> Column:
        """The value of a single path, null where a record has none."""
        column = source.record
        for step, _ in self.steps:
            column = F.get(column, step) if isinstance(step, int) else column.getField(step)
        return column

    def any(self, check: Check, source: RowColumns) -> Column:
        """Return whether a check is true of any value at the path, true or false."""
        return self._any(source.record, 0, check, source)

    def _any(self, column: Column, at: int, check: Check, source: RowColumns) -> Column:
        if at == len(self.steps):
            return F.coalesce(check(column, source), F.lit(False))
        step, _ = self.steps[at]
        if step == ELEMENTS:
            return F.coalesce(F.exists(column, lambda element: self._any(element, at + 1, check, source)), F.lit(False))
        below = F.get(column, step) if isinstance(step, int) else column.getField(step)
        return self._any(below, at + 1, check, source)


def resolve_path(parts: tuple[str | int, ...], schema: StructType) -> ResolvedPath | None:
    """Resolve a path in a schema; None where the schema does not describe everything that a record may have there.

    This is the case for a member that the schema does not name, and for a path below a text: the record may have an
    object there, which Spark has turned into a text.
    """
    steps: list[tuple[Step, DataType]] = []
    kind: DataType = schema
    for part in parts:
        if isinstance(part, int):
            if any(step == ELEMENTS for step, _ in steps):
                # The element depends on which objects have the member, null or not; a struct has lost that.
                return None
            if isinstance(kind, ArrayType):
                kind = kind.elementType
                steps.append((part, kind))
            elif part or isinstance(kind, StringType):
                return None
            continue  # A value that is no array is its own element 0.
        while isinstance(kind, ArrayType):
            kind = kind.elementType
            steps.append((ELEMENTS, kind))
        field = _field(part, kind)
        if field is None:
            return None
        kind = field.dataType
        steps.append((part, kind))
    while isinstance(kind, ArrayType):
        kind = kind.elementType
        steps.append((ELEMENTS, kind))
    return ResolvedPath(tuple(steps))


def _field(name: str, kind: DataType) -> StructField | None:
    if not isinstance(kind, StructType) or name == ELEMENTS:
        return None
    # Spark may look for names without regard to case, and then finds two.
    fields = [field for field in kind.fields if field.name.lower() == name.lower()]
    return fields[0] if len(fields) == 1 and fields[0].name == name else None
