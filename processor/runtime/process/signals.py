"""Ctrl-C, and other signals to end, for a command that has much to clean up."""

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
    """The first signal to end raises KeyboardInterrupt with its name; later ones do not disturb the clean-up.

    So every step of the clean-up must be bounded.
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
    """An event that SIGTERM and SIGINT set from now on.

    The kernel drops a SIGTERM that the first process of a container has no handler for: a worker asks for this before
    anything else.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
