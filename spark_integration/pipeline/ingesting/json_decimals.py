"""Finds the decimals of JSON rows that Spark would change, on the executors.

Spark rounds a number to the scale of its column, and reads a text without its commas, both without a word.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from spark_integration.pipeline.ingesting.csv_rows import decimal_problem

if TYPE_CHECKING:
    import pyarrow as pa

Decimals: TypeAlias = "int | Mapping[str, Decimals] | list[Decimals] | None"
"""The decimals of a type: a scale; those of the fields of a struct; those of each value of an array or a map in a list;
None: there are none."""

PROBLEM: Final = "decimal_problem"
CHECKED_DDL: Final = f"value binary, file string, line long, at long, partition int, {PROBLEM} string"
"""The columns of `JsonDecimals`: those that it gets, and the problem of a row; null where it has none."""
_UNREADABLE: Final = "the row is not JSON as in RFC 8259, so that its decimals cannot be compared with their columns"
_IN: Final = ("value", "file", "line", "at", "partition")


class _Number(str):
    """The text of a number."""

    __slots__ = ()


def decimals_of(kind: DataType) -> Decimals:
    """The decimals of a type of Spark."""
    if isinstance(kind, DecimalType):
        return kind.scale
    if isinstance(kind, StructType):
        fields = {field.name: decimals_of(field.dataType) for field in kind.fields}
        return {name: inner for name, inner in fields.items() if inner is not None} or None
    if isinstance(kind, ArrayType | MapType):
        inner = decimals_of(kind.elementType if isinstance(kind, ArrayType) else kind.valueType)
        return None if inner is None else [inner]
    return None


class JsonDecimals:
    """Compares the numbers of rows with their columns, for `mapInArrow`; pickled for the executors."""

    def __init__(self, decimals: Decimals) -> None:
        """Create it for the columns of a schema."""
        self._decimals = decimals

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check rows: columns `value`, `file`, `line`, `at` and `partition`."""
        import pyarrow as pa  # noqa: PLC0415 - on executors only

        for batch in batches:
            problems = [self._problem(value) for value in batch.column("value").to_pylist()]
            columns = [batch.column(name) for name in _IN]
            yield pa.RecordBatch.from_arrays([*columns, pa.array(problems, pa.string())], names=[*_IN, PROBLEM])

    def _problem(self, value: bytes | None) -> str | None:
        """The problem of a row, also of one that only Spark can read; None where there is none."""
        try:
            text = (value or b"").removeprefix(BOM_UTF8).decode()
            row = json.loads(text, parse_float=_Number, parse_int=_Number, strict=False)
        except (ValueError, RecursionError):
            return _UNREADABLE
        return _problem_of(row, self._decimals, "")


def _problem_of(value: Any, decimals: Decimals, name: str) -> str | None:
    if isinstance(decimals, int):
        return decimal_problem(name, value, decimals) if isinstance(value, str) else None
    if isinstance(decimals, list):
        [inner] = decimals
        items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        return next((found for item in items if (found := _problem_of(item, inner, name)) is not None), None)
    if decimals is None or not isinstance(value, dict):
        return None
    for field, inner in decimals.items():
        if field in value:
            found = _problem_of(value[field], inner, f"{name}.{field}" if name else field)
            if found is not None:
                return found
    return None
