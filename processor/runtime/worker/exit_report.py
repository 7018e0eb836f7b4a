"""Reports why a worker ended: one log line, and Kubernetes' termination message."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from processor.errors import SowstreamError

log = structlog.stdlib.get_logger("sowstream.worker")

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""The default `terminationMessagePath` in Kubernetes, which creates the file before a container starts."""
MESSAGE_BYTES_MAX: Final = 4096
"""Kubernetes truncates longer messages."""


def report_end(error: SowstreamError, termination_log: Path = TERMINATION_LOG) -> None:
    """Report the reason as a log line, unless the log goes to a terminal, and as the termination message.

    Args:
        error: the reason.
        termination_log: the file for the message; not created if it is missing.
    """
    code = 2 if isinstance(error, ConfigurationError) else 1
    if not sys.stderr.isatty():
        log.error("ended", error=str(error), kind=type(error).__name__, exit_code=code)
    with contextlib.suppress(OSError):
        if os.access(termination_log, os.W_OK):
            termination_log.write_bytes(str(error).encode()[:MESSAGE_BYTES_MAX])
