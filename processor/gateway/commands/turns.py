"""The order of commands, and their threads: for each kind of call a few, and a bounded number of calls that wait.

Commands for one key, and those that one name numbers, come one after another.

A call that hangs holds up calls of its kind alone, and what no thread will take soon is refused at once. So is a
command to a topic whose worker is away, when many of its commands wait for their acks: those to other topics go on.
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


_UNACKED_MAX: Final = 80_000
"""Commands without their last ack, to all topics: fewer than Kafka's client may have (`PENDING_ACKS_MAX`)."""
_UNACKED_OF_TOPIC_MAX: Final = 10_000
"""The same, to one topic; a gateway of many topics has fewer for each."""
_USER_SHARE: Final = 4
"""One user may have one of so many."""
_STALL_S: Final = 10.0
"""Time without an ack after which the next commands are refused, and do not wait."""


class UnackedCommands:
    """The commands whose last ack has not come: of each topic, and of each user there, a limited number.

    The next command waits while acks come. Event loop only.
    """

    def __init__(self, topics: int, *, is_anonymous: bool) -> None:
        """Begin without commands.

        Args:
            topics: the number of topics.
            is_anonymous: whether no token is needed: then all commands are of one user, who may have all the room.
        """
        self._topic_max: Final = max(1, min(_UNACKED_OF_TOPIC_MAX, _UNACKED_MAX // topics))
        self._user_max: Final = self._topic_max if is_anonymous else max(1, self._topic_max // _USER_SHARE)
        self._groups: dict[tuple[str, str | None], _Unacked] = {}

    async def admit(self, topic: str, user: str, count: int = 1) -> Callable[[], None]:
        """Count a command, or several that are sent as one, which may be more than there is room for.

        Returns:
            Counts it as acknowledged; to be called once.

        Raises:
            BadRequest: `unavailable`: there is no room, and no ack has come for a time.
        """
        limits = {(topic, user): self._user_max, (topic, None): self._topic_max}
        for name, count_max in limits.items():
            if (group := self._groups.get(name)) is not None:
                await group.wait_below(count_max, topic)
        groups = {name: self._groups.setdefault(name, _Unacked()) for name in limits}
        for group in groups.values():
            group.change(count)

        def end() -> None:
            for name, group in groups.items():
                group.change(-count)
                if not group.count and self._groups.get(name) is group:
                    del self._groups[name]

        return end


class _Unacked:
    """The commands of one topic, or of one user there."""

    __slots__ = ("_changed", "_changed_s", "count")

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()
        self._changed_s = 0.0

    def change(self, count: int) -> None:
        """Count some more, or fewer."""
        self.count += count
        self._changed_s = asyncio.get_running_loop().time()
        self._changed.set()

    async def wait_below(self, count_max: int, topic: str) -> None:
        """Wait until there are fewer. Raises a `BadRequest` if their number does not change."""
        while self.count >= count_max:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(self._changed_s + _STALL_S):
                    await self._changed.wait()
            except TimeoutError:
                raise BadRequest(
                    "unavailable",
                    f"{self.count} commands to {topic} wait for a worker, which has acknowledged none for "
                    f"{_STALL_S:g} s; try again later",
                ) from None


Place: TypeAlias = tuple[str, str, str]
"""A topic, and the key of a record or the name that numbers commands."""

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
        self._last: dict[Place, CommandTurn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait_for_all(self, topic: str) -> None:
        """Wait until no earlier command of a topic is to be sent again.

        Raises:
            BadRequest: `unavailable`: some of them wait too long for a worker.
        """
        waits = {turn.is_done for place, turn in self._last.items() if place[0] == topic}
        if waits and (await asyncio.wait(waits, timeout=_STALL_S))[1]:
            raise BadRequest("unavailable", f"earlier commands to {topic} wait for a worker; try again later")

    def begin(
        self,
        keys: list[Place],
        name: Place | None,
        work: Callable[[CommandTurn], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        """Begin some work, which is done behind all earlier work for these keys, and what was sent under this name.

        Args:
            keys: the places of its keys.
            name: the place of the name that numbers it; None: it has no number.
            work: the work, which notes at its turn that it was sent.
            on_end: called at its end.
        """
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
                on_end()
                for one in places:
                    if self._last.get(one) is turn:
                        del self._last[one]

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
