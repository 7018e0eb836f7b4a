"""The installed plug-ins: the processors that packages offer as entry points, and the checks of their declarations.

A wrong declaration is a clear error before anything starts.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel

from processor.api import Input, Output, Processor, RecordProcessor
from processor.entry_points import load_installed
from processor.errors import ConfigurationError, unknown_name
from processor.topics.family import Role

if TYPE_CHECKING:
    from types import CodeType


_ROLES: Final = get_args(Role)
_OUTPUTS: Final = tuple(role for role in _ROLES if role != "dlq")
_OWN_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_INPUTS: Final = ("publish", "sow")
_CALLS: Final = {
    "init": ("context", "settings"),
    "process": ("records",),
    "rejected": ("record", "error"),
    "punctuate": ("now_ms",),
    "flush": (),
    "close": (),
}
_RECORD_CALLS: Final = {"process_record": ("record",), "setup": ("settings",)}
"""The methods that the runtime calls, each with its arguments."""


def check_declaration(processor_type: Any, name: str) -> None:
    """Refuse a processor that cannot be hosted.

    Args:
        processor_type: the object of an entry point, or of a test.
        name: a name by which a person finds it, such as its entry point.

    Raises:
        ConfigurationError: all problems of the declaration, each with its remedy.
    """
    if not (isinstance(processor_type, type) and issubclass(processor_type, Processor)):
        raise ConfigurationError(f"processor {name}: it is not a Processor; name a subclass of processor.api.Processor")
    problems = [
        *_input_problems(processor_type),
        *_output_problems(processor_type),
        *_settings_problems(processor_type),
        *_method_problems(processor_type),
    ]
    if problems:
        raise ConfigurationError(f"processor {name}: {'; '.join(problems)}")


def _input_problems(processor_type: type[Processor]) -> Iterator[str]:
    declared = getattr(processor_type, "input", None)
    if not isinstance(declared, Input):
        yield f"`input` is {_shown(declared)}; declare input = Input('publish') or its like"
    elif not _is_input(declared.role) or not isinstance(declared.from_underlying, bool):
        roles = ", ".join(_INPUTS)
        yield (
            f"`input` is {_shown(declared)}; its role is one of {roles} or a name of its own, and from_underlying "
            "True or False"
        )
    elif declared.role not in _INPUTS and (declared.from_underlying or not processor_type.keeps_table):
        yield f"`input` is {_shown(declared)}: a topic of its own belongs to its family, and needs keeps_table = True"
    elif processor_type.keeps_table and declared.role in _INPUTS and declared != Input("sow", from_underlying=True):
        yield (
            "`keeps_table` is for an input with a name of its own, or the SOW of an underlying topic, and `input` is "
            f"{_shown(declared)}"
        )


def _output_problems(processor_type: type[Processor]) -> Iterator[str]:
    declared = getattr(processor_type, "outputs", None)
    if not isinstance(declared, tuple | list) or not all(isinstance(output, Output) for output in declared):
        yield f"`outputs` is {_shown(declared)}; declare a tuple, such as outputs = (Output('sow'),)"
        return
    roles = [output.role for output in declared]
    for role in dict.fromkeys(map(str, roles)):
        if (problem := _name_problem(role)) is not None:
            yield f"`outputs` declares {role!r}{problem}"
        elif roles.count(role) > 1:
            yield f"`outputs` declares {role!r} twice"
    if "sow" not in roles and (call := _state_call(processor_type)) is not None:
        yield f"{call}, and `outputs` declares no Output('sow') to restore it from"
    if not all(isinstance(output.repartition, bool) for output in declared):
        yield "`outputs` has a `repartition` that is neither True nor False"


def _is_input(role: Any) -> bool:
    """Return whether an input can have this role."""
    return isinstance(role, str) and (role in _INPUTS or (role not in _ROLES and _name_problem(role) is None))


def is_own_output(role: str) -> bool:
    """Return whether an output is the plug-in's own, such as `alerts`, and none of the family's roles."""
    return role not in _ROLES


def _name_problem(role: str) -> str | None:
    """Return the reason why an output cannot have this name, as the rest of a sentence; None if it can."""
    if role == "dlq":
        return "; every processor has dead letters: reject a record with Context.reject"
    if role in _ROLES:
        return None
    # A misspelt role would be a topic that nobody reads.
    if close := get_close_matches(role.lower(), _ROLES, n=1, cutoff=0.75):
        return f", too close to the role {close[0]!r}: write that, or choose another name"
    if _OWN_NAME.fullmatch(role) is None:
        return (
            f"; a name is one of {', '.join(_OUTPUTS)}, or one of the plug-in's own: up to 64 lower-case letters, "
            "digits, '_' and '-', a letter first"
        )
    return None


def _state_call(processor_type: type[Processor]) -> str | None:
    """Return the use of state in a plug-in's own methods, such as "`process_record` calls `put`"; None: no use."""
    ours = {
        name for name in ("put", "delete", "get") if getattr(processor_type, name, None) is vars(RecordProcessor)[name]
    }
    seen: set[str] = set()  # A method that another one overrides does not count.
    for owner in processor_type.__mro__:
        if owner in {RecordProcessor, Processor}:
            break
        for name, member in vars(owner).items():
            code = getattr(member, "__code__", None)
            if name not in seen and code is not None and (use := _use_in(code, ours)) is not None:
                return f"`{name}` {use}"
        seen.update(vars(owner))
    return None


def _use_in(code: CodeType, calls: set[str]) -> str | None:
    """Return the first attribute in a method that stands for the state: `self.put`, or `context.state`."""
    me = code.co_varnames[0] if code.co_argcount else None
    before: Any = None
    for step in dis.get_instructions(code):
        if step.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
            if me is not None and before == me and step.argval in calls:
                return f"calls `{step.argval}`"
            if before in {"context", "_context"} and step.argval == "state":
                return "uses the state"
        before = step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval
    return None


def _settings_problems(processor_type: type[Processor]) -> Iterator[str]:
    settings_type: Any = processor_type.settings_type
    is_repeatable: Any = processor_type.is_repeatable
    if not (isinstance(settings_type, type) and issubclass(settings_type, BaseModel)):
        yield f"`settings_type` is {_shown(settings_type)}; it is a pydantic model, such as a subclass of api.Settings"
    if not isinstance(is_repeatable, bool):
        yield f"`is_repeatable` is {_shown(is_repeatable)}; it is True or False"


def _method_problems(processor_type: type[Processor]) -> Iterator[str]:
    if missing := sorted(processor_type.__abstractmethods__):
        yield f"it does not define {', '.join(missing)}"
    elif not _takes(processor_type, ()):
        yield "it is made without arguments, and its `__init__` wants some; `init` has the settings"
    calls = _CALLS | (_RECORD_CALLS if issubclass(processor_type, RecordProcessor) else {})
    for method, arguments in calls.items():
        if not _takes(getattr(processor_type, method, None), ("self", *arguments)):
            yield f"`{method}` is no method that takes {', '.join(arguments) or 'nothing'}"
    if not _takes(processor_type.check, ("name", "settings", "codec")):
        yield "`check` is no class method that takes name, settings, codec"


def _takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Return whether a function can be called with so many arguments in order."""
    if not callable(function):
        return False
    return _binds(function, arguments) if inspect.isfunction(function) else _binds.__wrapped__(function, arguments)


@lru_cache(maxsize=1024)  # A test makes a driver of the same processor for each of its cases.
def _binds(function: Any, arguments: tuple[str, ...]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # Compiled code may not say what it takes.
        return True
    return True


def _shown(value: Any) -> str:
    return "missing" if value is None else f"{value!r:.100}"


GROUP: Final = "sowstream.processors"


class Installed(Mapping[str, "type[Processor]"]):
    """The processors that installed packages offer, by name; each is loaded when it is first asked for.

    A package whose plug-in is broken stops the topics that use it, and no others.
    """

    def __init__(self, points: Mapping[str, EntryPoint]) -> None:
        """Start with nothing loaded; `points` are the entry points by name."""
        self._points = points
        self._loaded: dict[str, type[Processor]] = {}

    def __getitem__(self, name: str) -> type[Processor]:
        """Load a processor.

        Raises:
            KeyError: there is none of this name.
            ConfigurationError: its entry point does not lead to a Processor, cannot be imported, or has a wrong
                declaration.
        """
        if name not in self._loaded:
            self._loaded[name] = load_processor(self._points[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._points)

    def __len__(self) -> int:
        """The number of processors."""
        return len(self._points)


def installed() -> Installed:
    """The processors of the packages that are installed now."""
    return Installed({point.name: point for point in entry_points(group=GROUP)})


def load_processor(point: EntryPoint) -> type[Processor]:
    """Load one processor, and check its declaration.

    Raises:
        ConfigurationError: the entry point does not lead to a Processor, cannot be imported, or has a wrong
            declaration.
    """
    processor_type: type[Processor] = load_installed(point, "processor")
    check_declaration(processor_type, f"{point.name!r} ({point.value})")
    return processor_type


def plugin_of(plugins: Mapping[str, type[Processor]], plugin: str, name: str) -> type[Processor]:
    """Return an installed processor.

    Raises:
        ConfigurationError: there is none of this name, or it cannot be used.
    """
    if (processor_type := plugins.get(plugin)) is None:
        raise ConfigurationError(
            f"{name}: {unknown_name('processor', plugin, list(plugins))}; is its package installed?"
        )
    return processor_type
