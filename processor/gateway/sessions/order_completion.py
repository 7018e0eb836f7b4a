"""Builds the rest of a window's order when the window has begun: scrolling, and updates for long, need all of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError

if TYPE_CHECKING:
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.subscriptions import Engine
    from processor.subscriptions.order_build import OrderBuild

_tasks: Final[dict[OrderBuild, asyncio.Task[None]]] = {}


def complete_behind(feed: KafkaFeed, engine: Engine, build: OrderBuild) -> None:
    """Go on with a build in slices, while a window runs in it, or another one is likely. Event loop only."""
    if build.is_done or build.has_failed or build in _tasks or not (build.places.windows or build.is_wanted):
        return
    build.users += 1
    task = _tasks[build] = asyncio.get_running_loop().create_task(_complete(feed, engine, build))
    task.add_done_callback(lambda _: _end(engine, build))


async def _complete(feed: KafkaFeed, engine: Engine, build: OrderBuild) -> None:
    try:
        while feed.engine is engine and (build.places.windows or build.is_wanted):
            if build.advance():
                return
            await asyncio.sleep(0)  # Others have their turn.
    except SowstreamError:
        return  # The windows that it concerns end with it.


def _end(engine: Engine, build: OrderBuild) -> None:
    """Let the build go; also of a task that was cancelled before it ran."""
    del _tasks[build]
    engine.release(build)
