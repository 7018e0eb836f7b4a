"""Why a worker ended, where its keeper looks: one log line, and Kubernetes' termination message."""

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
"""The default `terminationMessagePath` of a container in Kubernetes, which has the file there before it starts."""
MESSAGE_BYTES_MAX: Final = 4096
"""Kubernetes shows no more of it."""


def tell_end(error: SowstreamError, termination_log: Path = TERMINATION_LOG) -> None:
    """Say why the process ends: as a log line, unless a person reads the log, and in the termination message.

    Args:
        error: why.
        termination_log: a file of the container's keeper; where there is none, none is made.
    """
    code = 2 if isinstance(error, ConfigurationError) else 1
    if not sys.stderr.isatty():
        log.error("ended", error=str(error), kind=type(error).__name__, exit_code=code)
    with contextlib.suppress(OSError):
        if os.access(termination_log, os.W_OK):
            termination_log.write_bytes(str(error).encode()[:MESSAGE_BYTES_MAX])
