"""Ends a process of which a thread is stuck: in a call that does not come back there is nothing else to be done."""

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

_GAP_S = 2.0  # Far more than is ever between two looks of a process that runs.


class Stuck(NamedTuple):
    """A thread that does not come round."""

    name: str
    """The thread's name."""
    seconds: float
    """Since when, not counting the time the whole process stood still."""


class Watchdog:
    """Threads beat, the main thread looks.

    A process that was stopped (SIGSTOP, a paused container) and goes on has beaten as little as it has looked: such a
    gap counts for nobody. What holds the interpreter's lock keeps the main thread from looking, too, and is not seen.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Say how long a thread may take to come round."""
        self._limit_s = limit_s
        self._clock = clock
        self._beats: dict[int, tuple[str, float]] = {}
        self._looked_s = clock()

    def watch(self) -> None:
        """From now on this thread beats."""
        self._beats[threading.get_ident()] = (threading.current_thread().name, self._clock())

    def beat(self) -> None:
        """This thread comes round; of one that is not watched it means nothing."""
        if threading.get_ident() in self._beats:
            self.watch()

    def release(self) -> None:
        """This thread beats no more."""
        self._beats.pop(threading.get_ident(), None)

    def look(self) -> Stuck | None:
        """A thread that has not beaten for too long, if there is one. To be called every few tenths of a second."""
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
    """Say where every thread is, and end with exit code 1; Kafka rolls the open transaction back."""
    log.error(
        "a thread is stuck; ending the process, whose open transaction is rolled back. Where each thread is, follows",
        thread=stuck.name,
        seconds=round(stuck.seconds, 1),
    )
    sys.stdout.flush()
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
