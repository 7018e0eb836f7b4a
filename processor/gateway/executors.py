"""Threads for calls that wait: for each kind of call a few of its own, and a bounded number of calls that wait.

A call that hangs holds up calls of its kind alone, and what no thread will take soon is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from processor.gateway.sessions.requests import BadRequest

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class BoundedExecutor:
    """A few threads for calls of one kind. Event loop only."""

    def __init__(self, kind: str, *, threads: int, waiting_max: int, needs_caller: bool = False) -> None:
        """Begin without a thread.

        Args:
            kind: what the calls do, in the plural, such as `publishes`.
            threads: calls that run at the same time.
            waiting_max: further calls that wait for a thread; more are refused.
            needs_caller: whether a call that has not begun is dropped when its caller is gone.
        """
        self._needs_caller: Final = needs_caller
        self._kind: Final = kind
        self._calls_max: Final = threads + waiting_max
        self._calls = 0
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"gateway-{kind}")

    async def run(
        self, call: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Return the result of a call on one of the threads.

        Raises:
            BadRequest: `unavailable`: too many calls wait.
        """
        if self._calls >= self._calls_max:
            raise BadRequest("unavailable", f"{self._calls} {self._kind} are under way, and no more begin; try again")
        self._calls += 1
        begun = self._executor.submit(call, *args, **kwargs)
        future = asyncio.wrap_future(begun)
        # Until the call ends: that it is not waited for any more does not end it.
        future.add_done_callback(self._end)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._needs_caller:
                begun.cancel()  # It does nothing to a call that has begun.
            raise

    def close(self) -> None:
        """Begin no further call; one that runs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _end(self, future: asyncio.Future[_Result]) -> None:
        self._calls -= 1
        if not future.cancelled():
            future.exception()  # Looked at: the caller may be gone.
