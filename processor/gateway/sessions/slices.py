"""Work in slices on the event loop: one slice in each round, however many queries ask for work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from processor.subscriptions.turn import Build

_Result = TypeVar("_Result")


class Slices:
    """Gives turns to the work of queries, in the order in which they ask. Event loop only."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Do a piece of work of one turn, when its turn has come, and let others have theirs."""
        async with self._lock:
            try:
                return work()
            finally:
                await asyncio.sleep(0)

    async def build(self, build: Build, depth: int, is_needed: Callable[[], bool]) -> None:
        """Go on with a build until it is ready, or not needed any more.

        Raises:
            SowstreamError: it cannot be completed.
        """
        while is_needed() and not build.is_ready(depth):
            await self.run(build.advance)
