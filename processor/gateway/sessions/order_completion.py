"""Builds the rest of a window's order when the window has begun: scrolling, and updates for long, need all of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError
from processor.subscriptions.order_build import OrderBuild

if TYPE_CHECKING:
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.sessions.slices import Slices
    from processor.subscriptions import Engine
    from processor.subscriptions.turn import Build

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
