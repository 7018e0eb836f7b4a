"""Gives the memory of closed connections back to the system.

A connection that has closed leaves no reference cycle, so that its objects are freed at once, without a run of Python's
collector, which would hold the event loop. The C library keeps what was freed until it is asked to return it. Python's
own allocator returns an arena of 1 MB only when nothing in it is in use; where all memory is to return, an operator
starts the gateway with `PYTHONMALLOC=malloc`.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

CLOSED_MIN: Final = 500
"""Closed connections after which memory is returned."""
_STILL_CLOSING: Final = 0.1
"""While more than this share of them closed within the last second, it waits."""


class MemoryKeeper:
    """Counts closed connections, and returns their memory when the wave of them is over. Event loop only."""

    def __init__(self) -> None:
        self.returns = 0
        """How many times memory was returned."""
        self._closed = 0
        self._closed_before = 0

    def note_closed(self) -> None:
        """Note that a connection has closed."""
        self._closed += 1

    async def return_memory(self) -> None:
        """Return memory, if many connections have closed and few close now; call it once a second."""
        closed, latest = self._closed, self._closed - self._closed_before
        self._closed_before = closed
        if closed < CLOSED_MIN or latest > closed * _STILL_CLOSING:
            return
        self._closed = self._closed_before = 0
        self.returns += 1
        await asyncio.to_thread(_trim)  # Without Python's lock.


def _trim() -> None:
    """Return the free memory of the C library, where it is one that can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
