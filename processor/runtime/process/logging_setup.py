"""Sets logging up, for every process and for both kinds of loggers: colours on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from processor.config.secrets import hide_secret


def set_up_logging(*, verbose: bool = False, tells_process: bool = False) -> None:
    """Send all log lines to stderr: Sowstream's from INFO on, those of other libraries from WARNING on.

    Args:
        verbose: log Sowstream's lines from DEBUG on.
        tells_process: add the process id to each line, as several processes write to the same output.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
    ]
    if tells_process:
        shared.insert(0, _add_process_id)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers()],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sowstream").setLevel(logging.DEBUG if verbose else logging.INFO)


def _renderers() -> list[structlog.typing.Processor]:
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer()]
    return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]


def _add_process_id(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the process id."""
    event["pid"] = os.getpid()
    return event


def _hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values of secret settings by stars, at any depth of the event."""
    for name, value in event.items():
        event[name] = _hidden(name, value)
    return event


def _hidden(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {inner: _hidden(str(inner), item) for inner, item in value.items()}
    return hide_secret(name, value) if isinstance(value, str) else value
