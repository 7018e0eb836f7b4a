"""A function of the language, and how one is found: built in, or else in an installed package."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError, RecordRejected, Stop
from processor.record import Value
from processor.values.instant import Time

GROUP: Final = "sowstream.functions"
"""The entry-point group of third parties' functions: the name is the function's, in any case.

The object is a Python function: each positional parameter is an argument, given as None (NULL), a bool, an int, a
float, a Decimal or a text (a time is its text), of an array the element 0; its result is the value. Its attribute
`moves_by_itself = True` declares that its value changes although no record does, such as a clock's.
"""


@dataclass(frozen=True, slots=True)
class Function:
    """One function, built in or not."""

    name: str
    """Its name, in capitals."""
    call: Callable[..., Value]
    """The function itself."""
    least: int
    """Fewest arguments."""
    most: int | None
    """Most arguments; None: any number."""
    takes: str = "scalars"
    """Its arguments: `scalars`, then NULL gives NULL without a call; `nulls`, scalars of which some may be NULL;
    `arrays`, values as they are in the record; `metadata`, the metadata of the record."""
    moves_by_itself: bool = False
    """True if its value may be another one although nothing changed."""
    is_counted: bool = False
    """True if its work depends on the lengths of its arguments: the metadata, with the budget, come before them."""

    def arity(self) -> str:
        """The number of arguments it takes, in words."""
        if self.most is None:
            return f"{self.least} or more arguments"
        if self.least == self.most:
            return f"{self.least or 'no'} argument{'' if self.least == 1 else 's'}"
        return f"{self.least} {'or' if self.most == self.least + 1 else 'to'} {self.most} arguments"


def find_function(name: str, built_in: dict[str, Function]) -> Function | None:
    """The function of a name in capitals; None if there is none.

    Raises:
        ConfigurationError: it cannot be imported, or is no function.
    """
    if name in built_in:
        return built_in[name]
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


def function_names(built_in: dict[str, Function]) -> list[str]:
    """Every function's name, sorted: the built-in ones and those of installed packages."""
    return sorted({*built_in, "IF", *(name.upper() for name in installed_names(GROUP))})
