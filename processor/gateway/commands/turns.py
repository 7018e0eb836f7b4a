"""The order of commands, and their threads: for each kind of call a few, and a bounded number of calls that wait.

Commands for one key, and those that one name numbers, come one after another.

A call that hangs holds up calls of its kind alone, and what no thread will take soon is refused at once.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeAlias, TypeVar

from processor.client.gateway.answers import LATER
from processor.gateway.access.requests import BadRequest

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_PACE_MAX_S: Final = 0.5
"""Longest pause of a thread that computes."""


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


def paced(call: Callable[[], _Result]) -> _Result:
    """Make a call that computes, on a thread, and then let the event loop have as much time to itself."""
    began_s = time.monotonic()
    try:
        return call()
    finally:
        time.sleep(min(_PACE_MAX_S, time.monotonic() - began_s))


Place: TypeAlias = tuple[str, str, str]
"""A topic, and the key of a record or the name that numbers commands."""

_WAITING_MAX: Final = 500
"""Commands that may wait for their turn or their ack; the next ones wait to be taken."""
_MISSED_S: Final = 60.0
"""A number that does not come again for so long was given up."""
_MISSED_MAX: Final = 10_000
"""Numbers of one topic that are kept in mind; our clients keep no more commands without an answer."""


class NumberOrder:
    """The numbers that a client gets "not now" for; no higher number of the topic is sent before they come again.

    A worker drops a number that is not above the highest one that it took: behind a command that overtook it, one that
    was never sent would be answered as a duplicate. Event loop only.
    """

    __slots__ = ("_clock_s", "_missed")

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without a number."""
        self._clock_s = clock_s
        self._missed: dict[str, tuple[list[int], dict[int, float]]] = {}  # A heap, and when each failed.

    def check(self, topic: str, number: int | None) -> None:
        """Note that a number is about to be sent.

        Raises:
            BadRequest: `unavailable`: a lower one is to be sent again before.
        """
        if number is None or topic not in self._missed:
            return
        heap, times = self._missed[topic]
        while heap and times[heap[0]] + _MISSED_S < self._clock_s():
            del times[heapq.heappop(heap)]
        if heap and heap[0] < number:
            raise BadRequest("unavailable", f"sequence {heap[0]} was not taken; send it again first, then {number}")
        if heap and heap[0] == number:
            del times[heapq.heappop(heap)]
        if not heap:
            del self._missed[topic]

    def note(self, topic: str, number: object, reason: str) -> None:
        """Note the failure of a number, which counts if it says "not now"."""
        if type(number) is not int or reason not in LATER:
            return
        heap, times = self._missed.setdefault(topic, ([], {}))
        if number not in times:
            if len(times) >= _MISSED_MAX:
                return
            heapq.heappush(heap, number)
        times[number] = self._clock_s()


class CommandTurn:
    """The place of a command: those for its key wait until it is done, those under its name until it is sent."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.is_sent: Final[asyncio.Future[None]] = loop.create_future()
        self.is_done: Final[asyncio.Future[None]] = loop.create_future()

    def note_sent(self) -> None:
        """Note that it was sent."""
        if not self.is_sent.done():
            self.is_sent.set_result(None)

    def end(self) -> None:
        """Note that it is not sent again."""
        self.note_sent()
        if not self.is_done.done():
            self.is_done.set_result(None)


class CommandTurns:
    """The commands that are under way, in their order. Event loop only."""

    def __init__(self) -> None:
        """Begin without commands."""
        self._room = asyncio.Semaphore(_WAITING_MAX)
        self._last: dict[Place, CommandTurn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait_for_all(self, topic: str) -> None:
        """Wait until no earlier command of a topic is to be sent again."""
        if waits := {turn.is_done for place, turn in self._last.items() if place[0] == topic}:
            await asyncio.wait(waits)

    async def begin(
        self, keys: list[Place], name: Place | None, work: Callable[[CommandTurn], Awaitable[None]]
    ) -> None:
        """Begin some work, which is done behind all earlier work for these keys, and what was sent under this name.

        Args:
            keys: the places of its keys.
            name: the place of the name that numbers it; None: it has no number.
            work: the work, which notes at its turn that it was sent.
        """
        await self._room.acquire()
        turn, waits = CommandTurn(), set()
        for key in keys:
            if (before := self._last.get(key)) is not None:
                waits.add(before.is_done)
            self._last[key] = turn
        if name is not None:
            if (before := self._last.get(name)) is not None:
                waits.add(before.is_sent)
            self._last[name] = turn
        places = keys if name is None else [*keys, name]

        async def run() -> None:
            try:
                if waits:
                    await asyncio.wait(waits)
                await work(turn)
            finally:
                turn.end()
                self._room.release()
                for one in places:
                    if self._last.get(one) is turn:
                        del self._last[one]

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
