"""Handles the signals that end a process: for workers, and for commands that must clean up."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt with the name of the first signal that ends the process, and ignore later ones.

    Later signals cannot disturb the clean-up, so each of its steps must be bounded in time.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _ENDS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_on_signal() -> threading.Event:
    """Create an event that SIGTERM and SIGINT set from now on.

    The kernel drops a SIGTERM if the first process of a container has no handler for it: so a worker calls this before
    it does anything else.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
