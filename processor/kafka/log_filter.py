"""Keeps librdkafka's log readable: without a broker, a client says the same thing twenty times a second."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

_VARYING: Final = re.compile(r" \(after \d+ms in state [^)]*\)|\[rdkafka#[^\]]*\] ")
_BROKEN: Final = re.compile(r"\(after \d+ms in state (?:UP|UPDATE|REAUTH)\b")
_DIFFERENT_MAX: Final = 200  # Lines remembered; more than a cluster in trouble has to say.


class RepeatedLines(logging.Filter):
    """Lets a line pass once in a while, then with the number of those that were kept back."""

    def __init__(self, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Say how often the same line may be told.

        Args:
            interval_s: between two lines that differ in nothing but the client and how long something took.
            clock: seconds that only grow.
        """
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._told: dict[str, tuple[float, int]] = {}  # When a line was told, and how often it came since.

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is told."""
        said = record.getMessage()
        line, now_s = _VARYING.sub("", said), self._clock()
        told_s, kept = self._told.get(line, (None, 0))
        if told_s is not None and now_s - told_s < self._interval_s:
            self._told[line] = (told_s, kept + 1)
            return False
        if len(self._told) >= _DIFFERENT_MAX:
            self._told.clear()
        self._told[line] = (now_s, 0)
        if kept:
            record.msg, record.args = f"{said} [{kept} more since the last such line]", ()
        return True


class ConnectionBreaks:
    """A logger for one client that passes every line on and counts the connections that broke while they were up.

    librdkafka reports a break in its log only. It sends the requests that were in flight again by itself, and succeeds:
    no error reports that a request may have been sent twice. Not counted are connections that could not be made, and
    those that a broker closed because they were idle. librdkafka logs the same line once in 30 s: the client is to be
    given up at the first one.
    """

    def __init__(self, log: logging.Logger) -> None:
        """Pass lines on to this logger."""
        self._log = log
        self.count = 0
        """Breaks so far; up to date after the client was polled."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Log a line as `logging.Logger.log` does; librdkafka's arguments are its facility, the client, the message."""
        if len(arguments) == 3 and arguments[0] == "FAIL" and _BROKEN.search(str(arguments[2])):
            self.count += 1
        self._log.log(level, text, *arguments)
