"""Turns records of Python's own types into values that message types write: dataclasses, pydantic models, dates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from processor.record import Value

Default: TypeAlias = Callable[[Any], Any]
"""Returns another value for one that a message type does not write, as `default` of `json.dumps` does."""

PLAIN: Final = frozenset((dict, list, str, int, float, bool, NoneType, bytes, Decimal))
"""The types of values that each message type with such values writes, as far as it has them."""

_SCALARS: Final = PLAIN - {dict, list}


_LEVELS_MAX: Final = 256
"""Deeper parts of a value, as of one that contains itself, stay as they are: each message type refuses them."""


def plain_value(value: Any, default: Default | None, levels: int = _LEVELS_MAX) -> Value:
    """Return a value of dicts, lists and plain values.

    A dataclass and a pydantic model become objects with their fields, any other mapping a dict, a tuple a list, and a
    subclass of a plain type, such as an Enum of texts, that type's value.

    Args:
        value: the value.
        default: called with a value of any other type; None: such a value stays, and the message type decides.
        levels: how many levels of it are looked at.
    """
    kind, below = type(value), levels - 1
    if kind in _SCALARS or levels == 0:
        return value
    if isinstance(value, Mapping):
        return {name: plain_value(part, default, below) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part, default, below) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_value(getattr(value, field.name), default, below) for field in fields(value)}
    if (model_dump := getattr(value, "model_dump", None)) is not None:
        return plain_value(model_dump(), default, below)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value if default is None else plain_value(_replaced(value, default), default, below)


def _replaced(value: Any, default: Default) -> Any:
    """The value that `default` returns.

    Raises:
        TypeError: it is the same value again.
    """
    other = default(value)
    if other is value:
        raise TypeError(f"default= has returned the {type(value).__name__} that it was called with: {value!r:.100}")
    return other
