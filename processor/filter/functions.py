"""The functions of the language by name: built in, with those of arrays and of the record, or of an installed package.

A value that is no array counts as one element, as a single element of XML does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError, RecordRejected, Stop
from processor.filter import arithmetic, text_functions, time_functions
from processor.filter.arithmetic import greatest, least, operation
from processor.filter.evaluation import Function, RecordMetadata
from processor.filter.limits import CONVERSION_STEPS
from processor.filter.syntax_tree import Scalar
from processor.filter.value import Number, elements
from processor.record import Value
from processor.values.instant import Time

GROUP: Final = "sowstream.functions"
"""The entry-point group of third parties' functions: the name is the function's, in any case.

The object is a Python function: each positional parameter is an argument, given as None (NULL), a bool, an int, a
float, a Decimal or a text (a time is its text), of an array the element 0; its result is the value. Its attribute
`moves_by_itself = True` declares that its value changes although no record does, such as a clock's.
"""


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


def find_function(name: str) -> Function | None:
    """The function of a name in capitals; None if there is none.

    Raises:
        ConfigurationError: it cannot be imported, or is no function.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = next((known for known in installed_names(GROUP) if known.upper() == name), None)
    if installed is None:
        return None
    point = find_installed(GROUP, "function", installed)
    function = load_installed(point, "function")
    try:
        least, most = _arity(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"function {name}: {point.value} is no function of values in order: {error}; ask whoever wrote it"
        ) from None
    moves = bool(getattr(function, "moves_by_itself", False))
    return Function(name, _guarded(name, function), least, most, "nulls", moves)


def _arity(function: Any) -> tuple[int, int | None]:
    """Fewest and most arguments of a Python function.

    Raises:
        TypeError: it cannot be called, or not with values in order.
        ValueError: it cannot be called.
    """
    least, most = 0, 0
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return least, None
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            least, most = least + (parameter.default is parameter.empty), most + 1
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise TypeError(f"{parameter.name} has to be given by name")
    return least, most


def _guarded(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """A third party's function, which may raise anything: that costs the record."""

    def call(*arguments: Value) -> Value:
        try:
            return function(*(str(argument) if type(argument) is Time else argument for argument in arguments))
        except (Stop, RecordRejected):
            raise
        except Exception as error:
            raise RecordRejected("plugin_failed", f"function {name}: {type(error).__name__}: {error}") from error

    return call


def function_names() -> list[str]:
    """Every function's name, sorted: the built-in ones and those of installed packages."""
    return sorted({*BUILT_IN, "IF", *(name.upper() for name in installed_names(GROUP))})
