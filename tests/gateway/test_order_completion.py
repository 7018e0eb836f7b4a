"""The rest of a window's order is built behind the window, and not for longer than it is of use."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from processor.gateway.sessions import host
from processor.gateway.sessions.host import Slices, complete_behind
from processor.subscriptions.records import shared_orders
from tests.subscriptions.test_order_build import World, short_build, spec


@pytest.fixture
def world(monkeypatch):
    """An engine whose windows begin before their order is there."""
    monkeypatch.setattr(shared_orders, "OrderBuild", short_build)
    return World(1, count=5_000)


def begun(world, *, live):
    """A build whose window has begun, the connection of that, and a feed."""
    asked = spec(live=live)
    build = world.engine.prepare(asked)
    while not build.is_ready(asked.window_depth):
        build.advance()
    desk = world.engine.connect()
    desk.subscribe(asked)
    assert not build.is_done
    return build, desk, SimpleNamespace(engine=world.engine)


async def ended():
    """Wait until nothing is built."""
    while host._tasks:  # noqa: ASYNC110 - The end of a task that is not ours.
        await asyncio.sleep(0)


@pytest.mark.parametrize("ends", [False, True])
def test_the_order_of_a_live_window_is_completed_while_it_runs(world, ends):
    """The order is complete after some turns of the event loop, and is dropped if its window ends before."""

    async def run():
        build, desk, feed = begun(world, live=True)
        complete_behind(Slices(), feed, world.engine, build)
        complete_behind(Slices(), feed, world.engine, build)
        world.engine.release(build)
        assert len(host._tasks) == 1
        await asyncio.sleep(0)
        if ends:
            desk.close()
        await ended()
        assert build.is_done is not ends
        assert build.users == 0
        assert bool(world.engine._orders) is not ends

    asyncio.run(run())


def test_the_order_of_a_query_is_completed_when_it_is_asked_for_again(world):
    """The first query without updates leaves nothing behind; after the second one the order is kept."""

    async def run():
        for is_kept in (False, True):
            build, desk, feed = begun(world, live=False)
            desk.close()
            complete_behind(Slices(), feed, world.engine, build)
            world.engine.release(build)
            await ended()
            assert build.is_done is is_kept
        assert world.engine.prepare(spec(live=False)) is build

    asyncio.run(run())


def test_nothing_is_built_for_an_engine_that_was_replaced(world):
    """The build ends when the feed has another engine."""

    async def run():
        build, _, feed = begun(world, live=True)
        complete_behind(Slices(), feed, world.engine, build)
        world.engine.release(build)
        feed.engine = None
        await ended()
        assert not build.is_done

    asyncio.run(run())
