"""Sets logging up, for every process and for both kinds of loggers: colours on a terminal, JSON lines elsewhere.

structlog takes a tenth of the time in which `sowstream get` answers. So it is imported with the first log line, or by
the first module that needs it, and configured at that moment.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import io
import logging
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any, TextIO

from processor.config.secrets import hide_secrets
from processor.errors import without_controls

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    import structlog


def set_up_logging(*, verbose: bool = False, tells_process: bool = False) -> None:
    """Send all log lines to stderr: Sowstream's from INFO on, those of other libraries from WARNING on.

    A crash within a library writes the stacks of all threads there, which otherwise end without a word.

    Args:
        verbose: log Sowstream's lines from DEBUG on.
        tells_process: add the process id to each line, as several processes write to the same output.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # As a number: `sys.stderr` may be no file.
    handler = logging.StreamHandler()
    handler.setFormatter(_LazyFormatter(tells_process=tells_process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sowstream").setLevel(logging.DEBUG if verbose else logging.INFO)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AfterImport)]
    if "structlog" in sys.modules:
        _configure(tells_process=tells_process)
    else:
        sys.meta_path.insert(0, _AfterImport("structlog", lambda: _configure(tells_process=tells_process)))


class _LazyFormatter(logging.Formatter):
    """Formats lines by structlog, which it imports with the first one."""

    def __init__(self, *, tells_process: bool) -> None:
        super().__init__()
        self._tells_process = tells_process
        self._formatter: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        if self._formatter is None:
            import structlog  # noqa: PLC0415 - see above

            self._formatter = structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=_shared_processors(tells_process=self._tells_process),
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers()],
            )
        return self._formatter.format(record)


class _AfterImport(MetaPathFinder, Loader):
    """Runs an action once a module has been imported for the first time."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action
        self._loader: Loader | None = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - part of the interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The module as other finders have it, loaded by us; None for any other module."""
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module of the real loader."""
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and then the action."""
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()


def _shared_processors(*, tells_process: bool) -> list[structlog.typing.Processor]:
    import structlog  # noqa: PLC0415 - see above

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
    ]
    if tells_process:
        shared.insert(0, _add_process_id)
    return shared


def _configure(*, tells_process: bool) -> None:
    import structlog  # noqa: PLC0415 - see above

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(tells_process=tells_process),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _renderers() -> list[structlog.typing.Processor]:
    import structlog  # noqa: PLC0415 - see above

    # Without local variables: they hold records, and passwords.
    if sys.stderr.isatty():
        colors = not os.environ.get("NO_COLOR")
        return [_hide_controls, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_plain_traceback)]
    transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(transformer), structlog.processors.JSONRenderer()]


def _plain_traceback(out: TextIO, exc_info: Any) -> None:
    """Write a traceback, whose messages may quote records, without control characters."""
    import structlog  # noqa: PLC0415 - see above

    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(without_controls(text.getvalue()))


def _hide_controls(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the control characters of texts."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = without_controls(value)
    return event


def _add_process_id(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the process id."""
    event["pid"] = os.getpid()
    return event


def _hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values of secret settings by stars, at any depth of the event."""
    for name, value in event.items():
        event[name] = hide_secrets(value, name)
    return event
