"""The values of one expression for many records at once, as groups take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from processor.filter.evaluation import NO_METADATA, Evaluate, RecordMetadata, compile_path, within_budget
from processor.filter.syntax_tree import Scalar
from processor.filter.value import first, is_finite, scalar
from processor.record import Value

Column: TypeAlias = Callable[[Sequence[Value], Sequence[RecordMetadata] | None], Sequence[Scalar]]
"""An expression as a function of many records and their metadata, if it uses these."""

_AS_THEY_ARE: Final = frozenset((int, bool, type(None)))
_TEXTS: Final = _AS_THEY_ARE | {str}
_NUMBERS: Final = _AS_THEY_ARE | {float}


def column_of(evaluate: Evaluate) -> Column:
    """Return a compiled expression as a column."""

    def column(records: Sequence[Value], metadata: Sequence[RecordMetadata] | None) -> Sequence[Scalar]:
        if metadata is None:
            return [_storable(evaluate(record, NO_METADATA)) for record in records]
        return [_storable(evaluate(record, each)) for record, each in zip(records, metadata, strict=True)]

    return column


def column_of_path(parts: tuple[str | int, ...]) -> Column:
    """Return a path as a column: for the members of most records one look at each, and one at their types."""
    if len(parts) > 1 or not isinstance(parts[0], str):
        return column_of(within_budget(compile_path(parts), 1))
    name = parts[0]

    def column(records: Sequence[Value], metadata: Sequence[RecordMetadata] | None) -> Sequence[Scalar]:  # noqa: ARG001
        values = [record.get(name) for record in records]
        kinds = set(map(type, values))
        if kinds <= _AS_THEY_ARE:
            return values
        if kinds <= _TEXTS and "" not in values:
            return values
        if kinds <= _NUMBERS and all(map(is_finite, filter(None, values))):
            return values
        return [_storable(value) for value in values]

    return column


def plain(value: Value) -> Value:
    """Return a value as JSON can write it: a time is its text, NaN and infinity are NULL; objects and arrays stay."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict or isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if kind is list:
        return [plain(each) for each in value]
    found = scalar(value)
    if isinstance(found, float) and not is_finite(found):
        return None
    return found if found is None or isinstance(found, bool | int | float | str) or _is_number(found) else str(found)


def _is_number(value: Scalar) -> bool:
    return type(value).__name__ == "Decimal"


def _storable(value: Value) -> Scalar:
    """Return a value as a group takes it: of an array the element 0, NULL for an object."""
    return plain(first(value))  # type: ignore[no-any-return]
