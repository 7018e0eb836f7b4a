"""The log of a worker on a terminal: a line for each topic in place of those of its start."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Final

from processor.cli.output import inform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.config import Config
    from processor.trial.up.readiness import Readiness

_OF_THE_START: Final = frozenset(
    ("processors", "settings", "assigned", "let go", "restoring", "restored", "local state opened")
)
"""Events of which a worker logs several for each topic or partition when it starts."""
_OF_LATER_MOVES: Final = frozenset(("assigned", "let go"))
"""Those that are shown once all topics were ready: partitions come from other workers, or go to them."""


def shorten_log(config: Config, names: Sequence[str]) -> None:
    """Shorten the log of this process's worker, on a terminal without `-v`; a log for programs stays as it is.

    Args:
        config: the settings.
        names: the topics that the worker runs.

    Raises:
        ConfigurationError: the settings of a topic are invalid.
    """
    if not sys.stderr.isatty() or logging.getLogger("sowstream").isEnabledFor(logging.DEBUG):
        return
    from processor.trial.up.readiness import Readiness  # noqa: PLC0415

    short = _ShortStart(Readiness(config, names))
    for handler in logging.getLogger().handlers:
        handler.addFilter(short)


class _ShortStart(logging.Filter):
    """Drops the lines of a start, and prints a line for each topic that they make ready."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__()
        self._readiness = readiness
        self._began_s = time.monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is shown."""
        event = record.msg
        if not isinstance(event, dict) or event.get("event") not in _OF_THE_START or record.levelno > logging.INFO:
            return True
        if self._readiness.is_complete:
            return event["event"] in _OF_LATER_MOVES
        for topic in self._readiness.take(event):
            inform(topic.sentence(time.monotonic() - self._began_s))
        return False
