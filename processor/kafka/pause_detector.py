"""Detects that the process stood still: stopped by a signal, swapped out, or on a sleeping machine."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BEAT_S = 0.25


class PauseDetector:
    """Counts the times when not even a thread that only reads the clock was scheduled within a limit.

    Another thread that is busy for long does not count: the others go on, and heartbeats with them.
    """

    def __init__(self, limit_s: float, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start the thread.

        Args:
            limit_s: a shorter pause does not count.
            clock_s: a monotonic clock, in seconds.
        """
        self._clock_s = clock_s
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._pauses = 0
        self._beat_s = clock_s()
        self._end = threading.Event()
        threading.Thread(target=self._run, name="pause detector", daemon=True).start()

    @property
    def pauses(self) -> int:
        """The number of times that the process stood still for longer than the limit, up to now."""
        with self._lock:
            now_s = self._clock_s()
            # The calling thread may have woken up before the detector's.
            if now_s - self._beat_s > self._limit_s:
                self._pauses += 1
            self._beat_s = now_s
            return self._pauses

    def close(self) -> None:
        """Stop the thread."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(_BEAT_S):
            _ = self.pauses
