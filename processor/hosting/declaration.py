"""Checks what a processor declares when it is loaded: a wrong declaration is one clear error before anything starts."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel

from processor.api import Input, Output, Processor
from processor.errors import ConfigurationError
from processor.topics.family import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROLES: Final = get_args(Role)
_INPUTS: Final = ("publish", "sow")
_CALLS: Final = {
    "init": ("context", "settings"),
    "process": ("records",),
    "rejected": ("record", "error"),
    "punctuate": ("now_ms",),
    "close": (),
}
"""The methods that the runtime calls, each with its arguments."""


def check_declaration(processor_type: Any, name: str) -> None:
    """Refuse a processor that cannot be hosted.

    Args:
        processor_type: what an entry point leads to, or a test gives.
        name: how a person finds it, such as its entry point.

    Raises:
        ConfigurationError: all that is wrong with it, and what to write.
    """
    if not (isinstance(processor_type, type) and issubclass(processor_type, Processor)):
        raise ConfigurationError(f"processor {name}: it is not a Processor; name a subclass of processor.api.Processor")
    problems = [*_input_problems(processor_type), *_output_problems(processor_type), *_other_problems(processor_type)]
    if problems:
        raise ConfigurationError(f"processor {name}: {'; '.join(problems)}")


def _input_problems(processor_type: type[Processor]) -> Iterator[str]:
    declared = getattr(processor_type, "input", None)
    if not isinstance(declared, Input):
        yield f"`input` is {_shown(declared)}; declare input = Input('publish', from_underlying=False) or its like"
    elif declared.role not in _INPUTS or not isinstance(declared.from_underlying, bool):
        roles = ", ".join(_INPUTS)
        yield f"`input` is {_shown(declared)}; its role is one of {roles}, and from_underlying True or False"


def _output_problems(processor_type: type[Processor]) -> Iterator[str]:
    declared = getattr(processor_type, "outputs", None)
    if not isinstance(declared, tuple | list) or not all(isinstance(output, Output) for output in declared):
        yield f"`outputs` is {_shown(declared)}; declare a tuple, such as outputs = (Output('sow'),)"
        return
    roles = [output.role for output in declared]
    for role in dict.fromkeys(map(str, roles)):
        if role == "dlq":
            yield "`outputs` declares 'dlq'; every processor has dead letters: reject a record with Context.reject"
        elif role not in _ROLES:
            yield f"`outputs` has the role {role!r}; known: {', '.join(known for known in _ROLES if known != 'dlq')}"
        elif roles.count(role) > 1:
            yield f"`outputs` declares {role!r} twice"
    if not all(isinstance(output.repartition, bool) for output in declared):
        yield "`outputs` has a `repartition` that is neither True nor False"


def _other_problems(processor_type: type[Processor]) -> Iterator[str]:
    settings_type: Any = processor_type.settings_type
    is_repeatable: Any = processor_type.is_repeatable
    if not (isinstance(settings_type, type) and issubclass(settings_type, BaseModel)):
        yield f"`settings_type` is {_shown(settings_type)}; it is a pydantic model, such as a subclass of api.Settings"
    if not isinstance(is_repeatable, bool):
        yield f"`is_repeatable` is {_shown(is_repeatable)}; it is True or False"
    if missing := sorted(processor_type.__abstractmethods__):
        yield f"it does not define {', '.join(missing)}"
    elif not _takes(processor_type, ()):
        yield "it is made without arguments, and its `__init__` wants some; `init` has the settings"
    for method, arguments in _CALLS.items():
        if not _takes(getattr(processor_type, method, None), ("self", *arguments)):
            yield f"`{method}` is no method that takes {', '.join(arguments) or 'nothing'}"
    if not _takes(processor_type.check, ("name", "settings", "codec")):
        yield "`check` is no class method that takes name, settings, codec"


def _takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Whether it can be called with so many arguments in order."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # Compiled code may not say what it takes.
        return True
    return True


def _shown(value: Any) -> str:
    return "missing" if value is None else f"{value!r:.100}"
