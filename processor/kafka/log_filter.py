"""Reads librdkafka's log: drops repeated lines, and counts broken connections."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

_VARYING: Final = re.compile(r" \(after \d+ms in state [^)]*\)|\[rdkafka#[^\]]*\] ")
_BROKEN: Final = re.compile(r"\(after \d+ms in state (?:UP|UPDATE|REAUTH)\b")
_DIFFERENT_MAX: Final = 200  # Lines remembered; a cluster in trouble produces fewer.


class RepeatedLines(logging.Filter):
    """Lets the same line pass once in a while, with the number of repetitions dropped since then."""

    def __init__(self, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the filter.

        Args:
            interval_s: least time between two lines that are equal except for the client and a duration.
            clock: a monotonic clock, in seconds.
        """
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        # By line, the time when it passed, and the number of repetitions since.
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line passes."""
        text = record.getMessage()
        line, now_s = _VARYING.sub("", text), self._clock()
        passed_s, dropped = self._passed.get(line, (None, 0))
        if passed_s is not None and now_s - passed_s < self._interval_s:
            self._passed[line] = (passed_s, dropped + 1)
            return False
        if len(self._passed) >= _DIFFERENT_MAX:
            self._passed.clear()
        self._passed[line] = (now_s, 0)
        if dropped:
            record.msg, record.args = f"{text} [{dropped} more since the last such line]", ()
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
