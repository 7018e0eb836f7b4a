"""Notices that the process stood still: stopped by a signal, swapped out, its machine asleep."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BEAT_S = 0.25


class PauseDetector:
    """Counts the times when not even a thread that does nothing but look at the clock came to its turn.

    A thread that is busy is not late by this, however long it is: the others go on, and heartbeats with them.
    """

    def __init__(self, limit_s: float, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin to beat.

        Args:
            limit_s: a pause shorter than this is none.
            clock_s: what tells the time.
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
        """How often the process stood still for longer than the limit, up to now."""
        with self._lock:
            now_s = self._clock_s()
            # Whoever asks may have woken up before the thread did.
            if now_s - self._beat_s > self._limit_s:
                self._pauses += 1
            self._beat_s = now_s
            return self._pauses

    def close(self) -> None:
        """Stop beating."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(_BEAT_S):
            _ = self.pauses
