"""Where a path leads in a typed record, and whether anything there is as wanted.

A path that goes through arrays leads to all of their elements; a check of it holds if it holds of any.
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
"""From a value down: the name of a member, the number of an element, or `ELEMENTS`, which no member is called."""


class Source(NamedTuple):
    """One record, in both of its forms."""

    record: Column
    """As a struct."""
    value: Column
    """As JSON text, for what the struct does not say."""


Check: TypeAlias = Callable[[Column, Source], Column]
"""Whether a scalar is as wanted: true, false, or null where there is none."""


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """What a path leads to: one value, or the elements of arrays."""

    steps: tuple[tuple[Step, DataType], ...]
    """Each step down, with the type it leads to."""

    @property
    def type(self) -> DataType:
        """The type of what is there."""
        return self.steps[-1][1]

    @property
    def is_single(self) -> bool:
        """Whether it is one value: no array is gone through."""
        return all(step != ELEMENTS for step, _ in self.steps)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The members down to it; None where the way goes through an array."""
        names = tuple(step for step, _ in self.steps if isinstance(step, str) and step != ELEMENTS)
        return names if len(names) == len(self.steps) else None

    def single(self, source: Source) -> Column:
        """The value, null where there is none; of a place that is one."""
        column = source.record
        for step, _ in self.steps:
            column = F.get(column, step) if isinstance(step, int) else column.getField(step)
        return column

    def any(self, check: Check, source: Source) -> Column:
        """Whether anything there is as wanted, true or false."""
        return self._any(source.record, 0, check, source)

    def _any(self, column: Column, at: int, check: Check, source: Source) -> Column:
        if at == len(self.steps):
            return F.coalesce(check(column, source), F.lit(False))
        step, _ = self.steps[at]
        if step == ELEMENTS:
            return F.coalesce(F.exists(column, lambda element: self._any(element, at + 1, check, source)), F.lit(False))
        below = F.get(column, step) if isinstance(step, int) else column.getField(step)
        return self._any(below, at + 1, check, source)


def resolve_path(parts: tuple[str | int, ...], schema: StructType) -> ResolvedPath | None:
    """Where a path leads; None where the schema does not say all of what a record may have there.

    So it is of a member that the schema does not name, and of what is below a text: the record may have an object
    there, of which Spark made a text.
    """
    steps: list[tuple[Step, DataType]] = []
    kind: DataType = schema
    for part in parts:
        if isinstance(part, int):
            if any(step == ELEMENTS for step, _ in steps):
                # Which element it is depends on which objects have the member, null or not; a struct does not say.
                return None
            if isinstance(kind, ArrayType):
                kind = kind.elementType
                steps.append((part, kind))
            elif part or isinstance(kind, StringType):
                return None
            continue  # What is no array is its own element 0.
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
    found = [field for field in kind.fields if field.name.lower() == name.lower()]
    return found[0] if len(found) == 1 and found[0].name == name else None
