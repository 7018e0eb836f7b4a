"""One thread that does what it is handed, in order, and keeps no program from ending.

A program that ends waits for the threads of a `ThreadPoolExecutor`: one that reads until somebody closes it would be
waited for without end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

_Handed: TypeAlias = "tuple[Callable[[], None], Future[None]]"


class Daemon:
    """Starts at once; ends when it is told to, or with the program."""

    def __init__(self, name: str) -> None:
        """Start the thread of this name."""
        self._handed: SimpleQueue[_Handed | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Hand it something; what is done when it is done, whatever became of it: it must not raise."""
        done: Future[None] = Future()
        self._handed.put((call, done))
        return done

    def end(self) -> None:
        """Let it end, behind all that it was handed."""
        self._handed.put(None)

    def join(self) -> None:
        """Wait until it has."""
        self._thread.join()

    def _work(self) -> None:
        while (handed := self._handed.get()) is not None:
            call, done = handed
            try:
                call()
            finally:
                done.set_result(None)
