"""Functions of arrays; any other value counts as one element, as a single element of XML does."""

from __future__ import annotations

from functools import reduce
from typing import Final

from processor.filter.arithmetic import operation
from processor.filter.cost import CONVERSION_STEPS
from processor.filter.function import Function
from processor.filter.functions.numbers import greatest, least
from processor.filter.record_metadata import RecordMetadata
from processor.filter.syntax_tree import Scalar
from processor.filter.value import Number, elements
from processor.record import Value


def array_count(array: Value) -> int:
    """Number of elements of an array, NULL and objects included; 0 where there is nothing."""
    if type(array) is list:
        return len(array)
    return int(array is not None and array != "")


def array_min(metadata: RecordMetadata, array: Value) -> Scalar:
    """The least element; NULL is left out, and is what there is without any."""
    known = _elements(metadata, array)
    return least(*known) if known else None


def array_max(metadata: RecordMetadata, array: Value) -> Scalar:
    """The greatest element, likewise."""
    known = _elements(metadata, array)
    return greatest(*known) if known else None


def array_sum(metadata: RecordMetadata, array: Value) -> Number | None:
    """The sum of the elements, likewise; a text that is no number makes it NAN."""
    known = _elements(metadata, array)
    return reduce(operation("+"), known, 0) if known else None  # type: ignore[arg-type]


def _elements(metadata: RecordMetadata, array: Value) -> list[Scalar]:
    """The elements that are not NULL, which are compared or added up."""
    known = elements(array, metadata)
    metadata.spend(len(known) * CONVERSION_STEPS)
    return known


FUNCTIONS: Final = (
    Function("ARRAY_COUNT", array_count, 1, 1, "arrays"),
    Function("ARRAY_MIN", array_min, 1, 1, "arrays", is_counted=True),
    Function("ARRAY_MAX", array_max, 1, 1, "arrays", is_counted=True),
    Function("ARRAY_SUM", array_sum, 1, 1, "arrays", is_counted=True),
)
