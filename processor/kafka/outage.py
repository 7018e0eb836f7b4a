"""Tracks how long Kafka has been unreachable as a whole, for the log (a line a minute) and for a metric."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sowstream.kafka")

_LINE_INTERVAL_S: Final = 60.0


class Outage:
    """The time since which no broker has answered a client of this process. Safe from any thread.

    Only requests that any broker may answer count: a coordinator or leader that is away is no outage.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start with a reachable Kafka; `clock_s` is a monotonic clock."""
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._line_s = -_LINE_INTERVAL_S
        self._was_logged = False

    def unreachable(self, doing: str) -> None:
        """Record that no broker has answered; `doing` is the action that waits, such as "starting the producer x"."""
        with self._lock:
            now_s = self._clock_s()
            if self._since_s is None:
                self._since_s = now_s
            if now_s - self._line_s < _LINE_INTERVAL_S:
                return
            self._line_s, self._was_logged = now_s, True
            away_s = round(now_s - self._since_s, 1)
        log.warning("Kafka does not answer", extra={"doing": doing, "away_s": away_s})

    def reached(self) -> None:
        """Record that a broker has answered."""
        if self._since_s is None:  # The usual case, without the lock.
            return
        with self._lock:
            away_s, self._since_s = self.seconds, None
            was_logged, self._was_logged = self._was_logged, False
        if was_logged:
            log.info("Kafka answers again", extra={"away_s": round(away_s, 1)})

    @property
    def is_away(self) -> bool:
        """True if the last request that any broker may answer had no answer."""
        return self._since_s is not None

    def restart(self) -> None:
        """Begin again in a forked process, where another thread may have held the lock."""
        self._lock, self._since_s = threading.Lock(), None

    @property
    def seconds(self) -> float:
        """For how long Kafka has been away; 0 while it is reached."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock_s() - since_s


_process: Final = Outage()
"""The account of this process: all its clients use the same cluster."""

if hasattr(os, "register_at_fork"):  # Not on Windows, which has no fork.
    os.register_at_fork(after_in_child=_process.restart)

unreachable = _process.unreachable
reached = _process.reached


def is_away() -> bool:
    """Return whether Kafka is unreachable for this process; see `Outage.is_away`."""
    return _process.is_away


def seconds() -> float:
    """For how long Kafka has been unreachable for this process; 0 while it is reached."""
    return _process.seconds
