"""The built-in functions by name, with those of arrays and of the record.

A value that is no array counts as one element, as a single element of XML does.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from processor.filter import arithmetic, text_functions, time_functions
from processor.filter.arithmetic import greatest, least, operation
from processor.filter.evaluation import RecordMetadata
from processor.filter.function import Function
from processor.filter.limits import CONVERSION_STEPS
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


ARRAY_FUNCTIONS: Final = (
    Function("ARRAY_COUNT", array_count, 1, 1, "arrays"),
    Function("ARRAY_MIN", array_min, 1, 1, "arrays", is_counted=True),
    Function("ARRAY_MAX", array_max, 1, 1, "arrays", is_counted=True),
    Function("ARRAY_SUM", array_sum, 1, 1, "arrays", is_counted=True),
)


def message_size(metadata: RecordMetadata) -> int | None:
    """Bytes of the encoded record."""
    return metadata.message_bytes


def sow_key(metadata: RecordMetadata) -> str:
    """The record's key as text."""
    return metadata.sow_key


def topic_name(metadata: RecordMetadata) -> str:
    """The topic's name."""
    return metadata.topic


def correlation_id(metadata: RecordMetadata) -> str:
    """The publisher's correlation id."""
    return metadata.correlation_id


def last_updated(metadata: RecordMetadata) -> float | None:
    """Time of the record's last change, in seconds since the epoch."""
    return None if metadata.last_updated_ms is None else metadata.last_updated_ms / 1000


RECORD_FUNCTIONS: Final = (
    Function("MESSAGE_SIZE", message_size, 0, 0, "metadata"),
    Function("SOW_KEY", sow_key, 0, 0, "metadata"),
    Function("TOPIC_NAME", topic_name, 0, 0, "metadata"),
    Function("CORRELATION_ID", correlation_id, 0, 0, "metadata"),
    Function("LAST_UPDATED", last_updated, 0, 0, "metadata"),
)

BUILT_IN: Final[dict[str, Function]] = {
    function.name: function
    for function in (
        *text_functions.FUNCTIONS,
        *arithmetic.FUNCTIONS,
        *time_functions.FUNCTIONS,
        *ARRAY_FUNCTIONS,
        *RECORD_FUNCTIONS,
    )
}
"""Every built-in function by its name in capitals."""
