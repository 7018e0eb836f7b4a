"""Ends a process with a stuck thread: a call that never returns leaves no other way."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.stdlib.get_logger("sowstream.watchdog")

_GAP_S = 2.0  # Far more than the time between two looks of a running process.


class Stuck(NamedTuple):
    """A thread that has not called `beat` for too long."""

    name: str
    """The thread's name."""
    seconds: float
    """Time since its last beat, without the time for which the process was suspended."""


class Watchdog:
    """Detects stuck threads: threads beat, and the main thread looks.

    While a process is suspended (SIGSTOP, a paused container) its threads neither beat nor look: such a gap does not
    count. A call that holds the interpreter's lock also blocks the main thread, and is not detected.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the longest time between two beats of a thread."""
        self._limit_s = limit_s
        self._clock = clock
        self._beats: dict[int, tuple[str, float]] = {}
        self._looked_s = clock()

    def watch(self) -> None:
        """Begin to watch this thread."""
        self._beats[threading.get_ident()] = (threading.current_thread().name, self._clock())

    def beat(self) -> None:
        """Note that this thread is not stuck; ignored for a thread that is not watched."""
        if threading.get_ident() in self._beats:
            self.watch()

    def release(self) -> None:
        """Stop watching this thread."""
        self._beats.pop(threading.get_ident(), None)

    def look(self) -> Stuck | None:
        """Return a stuck thread, if there is one. To be called every few tenths of a second."""
        now_s = self._clock()
        gap_s = now_s - self._looked_s
        self._looked_s = now_s
        beats = list(self._beats.items())
        if gap_s > _GAP_S:
            for thread, (name, beaten_s) in beats:
                if self._beats.get(thread) == (name, beaten_s):
                    self._beats[thread] = (name, min(now_s, beaten_s + gap_s))
            return None
        for _, (name, beaten_s) in beats:
            if now_s - beaten_s > self._limit_s:
                return Stuck(name, now_s - beaten_s)
        return None

    def check(self) -> None:
        """Look, and end the process if a thread is stuck."""
        if (stuck := self.look()) is not None:
            end(stuck)


def end(stuck: Stuck) -> NoReturn:
    """Log the stack of every thread, and end with exit code 1; Kafka rolls the open transaction back."""
    log.error(
        "a thread is stuck; ending the process, whose open transaction is rolled back. Where each thread is, follows",
        thread=stuck.name,
        seconds=round(stuck.seconds, 1),
    )
    sys.stdout.flush()
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
