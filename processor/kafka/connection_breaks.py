"""Notices that a client's connection to a broker broke, which librdkafka tells in its log and nowhere else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_BROKEN = re.compile(r"\(after \d+ms in state (?:UP|UPDATE|REAUTH)\b")


class ConnectionBreaks:
    """A logger for one client, which passes everything on and counts the connections that broke while they were up.

    librdkafka sends what was on its way again by itself, and succeeds: no error says that a request may have gone out
    twice. Connections that could not be made are not counted, and ones that a broker ended for idleness are not told.
    Of the same news within 30 s only the first is told: a client is to be given up for it.
    """

    def __init__(self, log: logging.Logger) -> None:
        """Say where the lines go."""
        self._log = log
        self.count = 0
        """Breaks so far; what happened is known once the client was polled."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Take a line as `logging.Logger.log` does; called by librdkafka: its facility, the client, the message."""
        if len(arguments) == 3 and arguments[0] == "FAIL" and _BROKEN.search(str(arguments[2])):
            self.count += 1
        self._log.log(level, text, *arguments)
