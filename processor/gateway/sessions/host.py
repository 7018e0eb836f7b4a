"""The parts of a gateway that a session uses, among them the work in slices on the event loop.

One slice is done in each round, however many queries ask for work. So the rest of a window's order is built when the
window has begun: scrolling, and updates for long, need all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from processor.errors import SowstreamError
from processor.subscriptions.records.order_build import OrderBuild

if TYPE_CHECKING:
    from processor.config.gateway import GatewayLimits
    from processor.gateway.access.allowances import Allowance
    from processor.gateway.access.entitlements import Rights
    from processor.gateway.access.identity import Identity
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.sessions.frames import FrameEncoder
    from processor.subscriptions import Engine, SubscriptionSpec
    from processor.subscriptions.request.turn import Build
    from processor.subscriptions.resume import Bookmark


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


_tasks: Final[dict[OrderBuild, asyncio.Task[None]]] = {}


def complete_behind(slices: Slices, feed: KafkaFeed, engine: Engine, build: Build) -> None:
    """Go on with the order of a window in slices, while one runs in it, or is likely. Event loop only."""
    if not isinstance(build, OrderBuild) or build.keeps_records:
        return
    if build.is_done or build.has_failed or build in _tasks or not (build.places.windows or build.is_wanted):
        return
    build.users += 1
    task = _tasks[build] = asyncio.get_running_loop().create_task(_complete(slices, feed, engine, build))
    task.add_done_callback(lambda _: _end(engine, build))


async def _complete(slices: Slices, feed: KafkaFeed, engine: Engine, build: OrderBuild) -> None:
    try:
        while feed.engine is engine and (build.places.windows or build.is_wanted):
            if await slices.run(build.advance):
                return
    except SowstreamError:
        return  # The windows that it concerns end with it.


def _end(engine: Engine, build: OrderBuild) -> None:
    """Let the build go; also of a task that was cancelled before it ran."""
    del _tasks[build]
    engine.release(build)


class FrameSender(NamedTuple):
    """Sends the frames of a session to its client, over a WebSocket or as Server-Sent Events.

    ::

        answer ──▶ Session.answer ──▶ wake ──▶ a task ──▶ Session.next_frame ──▶ ASGI
        update ──▶ Gateway's tick ──▶ flush ─┬▶ Session.take_frame ──▶ Transport.write_frame, at once
                                             ╰▶ wake, if the client does not take it now
    """

    wake: Callable[[], None]
    """Called when a frame is to be sent."""
    flush: Callable[[], None]
    """Called with each tick when messages wait; it may send a frame at once."""
    abort: Callable[[], None]
    """Called when the client is to be closed at once, even while a frame is being sent."""


def _ignore() -> None:
    """Do nothing: the client is gone."""


NO_SENDER: Final = FrameSender(_ignore, _ignore, _ignore)
"""That of a session whose client is gone."""


class Waiting(Protocol):
    """A session with messages for the next tick."""

    sender: FrameSender
    """Sends its frames."""

    @property
    def is_catching_up(self) -> bool:
        """True if the next messages must be read or computed first."""


class SessionHost(Protocol):
    """The feeds, rights and limits of a gateway."""

    ready_timeout_s: float
    """Longest wait of a request for a topic's view."""
    waiting: list[Waiting]
    """Sessions with messages for the next tick."""

    slices: Slices
    """Gives turns to the work of queries."""

    @property
    def feeds(self) -> Mapping[str, KafkaFeed]:
        """The feed of each topic."""

    @property
    def limits(self) -> GatewayLimits:
        """The limits."""

    @property
    def encoder(self) -> FrameEncoder:
        """Encodes messages for all sessions."""

    async def compiled(
        self,
        words: int,
        compile: Callable[[], SubscriptionSpec],  # noqa: A002
        allowance: Allowance | None,
    ) -> SubscriptionSpec:
        """Compile a request of so many words, on a thread if that takes long."""

    def rights(self, identity: Identity, topic: str) -> Rights:
        """The rights of an identity on a topic."""

    def places_text(self, feed: KafkaFeed, bookmark: Bookmark) -> str:
        """The part of a bookmark's text that all queries of a topic share."""

    def count_resume(self, outcome: str) -> None:
        """Count a request to resume."""
