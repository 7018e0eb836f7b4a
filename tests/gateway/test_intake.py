"""The work of a feed in turns: records reach the engine in order, and a window's order is completed behind it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from processor.client.feeds.snapshot_boundary import FetchedBatches
from processor.client.feeds.stored_view import StoredView
from processor.errors import PositionLost
from processor.gateway.feeds.intake import PART_MAX, Intake
from processor.gateway.feeds.kafka_feed import KafkaFeed
from processor.gateway.sessions import host
from processor.gateway.sessions.host import Slices, complete_behind
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, parse_options
from processor.subscriptions.records import shared_orders
from processor.subscriptions.request.subscribe_options import FORMS
from processor.subscriptions.request.turn import TURN_S
from processor.subscriptions.resume import Bookmark
from processor.topics.family import DAY_MS
from tests.subscriptions.desk import ORDERS, Desk
from tests.subscriptions.test_order_build import World, short_build, spec


def test_costly_updates_are_given_in_small_parts():
    """Updates of a millisecond each take several turns, in which others run, and a call comes behind its records."""
    parts, turns = [], []

    async def run():
        def take(partition, records):
            parts.append(records)
            time.sleep(0.001 * len(records))

        done = asyncio.Event()
        intake = Intake(take)
        intake._part_max = 2
        intake.add(0, list(range(50)))
        intake.add(1, list(range(50, 60)))
        intake.add_call(done.set)
        while not done.is_set():
            turns.append(len(parts))
            await asyncio.sleep(0)

    asyncio.run(run())
    assert [record for part in parts for record in part] == list(range(60))
    assert max(map(len, parts)) <= TURN_S * 1000
    assert len(turns) > 3


def test_cheap_updates_are_given_in_large_parts_and_a_failure_ends_nothing():
    """Parts grow up to their limit, and after a call that raised the next records are given."""
    parts = []

    def take(partition, records):
        parts.append(len(records))
        if records == ["bad"]:
            raise ValueError("bad record")

    async def run():
        intake = Intake(take)
        with pytest.raises(ValueError, match="bad record"):
            intake.add(0, ["bad"])
        done = asyncio.Event()
        for _ in range(20):
            intake.add(0, [0] * PART_MAX)
        intake.add_call(done.set)
        await done.wait()

    asyncio.run(run())
    assert sum(parts) == 20 * PART_MAX + 1
    assert max(parts) == PART_MAX


class _Broken(MemoryRecords):
    """A view with a fault of the program."""

    def get_many(self, keys, partition=None):
        """Raise."""
        raise KeyError("a fault")


@pytest.mark.parametrize("call", ["take", "advance"])
def test_an_engine_that_fails_is_not_used_any_more(tmp_path, monkeypatch, call):
    """After any error of its engine a feed is not ready, and begins again: the engine has missed records."""
    feed = KafkaFeed(ORDERS, {}, "orders.sow", group="g", directory=tmp_path, history_bytes=1_000)
    feed.engine = engine = Engine(ORDERS, _Broken() if call == "take" else MemoryRecords())
    Desk.subscribe(
        SimpleNamespace(topic=ORDERS, subscriber=engine.connect(), connection_of={}), "subscribe", sub_id="a"
    )
    if call == "take":
        feed._take(0, [Desk().record(1, b'{"id":1}')])
    else:
        monkeypatch.setattr(engine, "advance", {}.popitem)
        feed.punctuate(0)
    assert not feed.is_ready
    assert feed._broken.is_set()
    assert feed.updates == 0


def test_a_feed_that_could_not_read_for_long_begins_again(tmp_path):
    """After a time without a read in which deletes may have been compacted away, the view is wiped and read again."""

    def check_pause(silent_s):
        raise PositionLost(f"nothing was read for {silent_s} s")

    boundary = SimpleNamespace(after=lambda: FetchedBatches([], {0: 7}, 90_000.0), check_pause=check_pause)
    feed = KafkaFeed(ORDERS, {}, "orders.sow", group="g", directory=tmp_path, history_bytes=1_000)
    with pytest.raises(PositionLost, match=r"90000\.0 s"):
        feed._read(boundary)


@pytest.mark.parametrize(("bookmark", "resumes"), [(11, False), (3_000, False), (5_001, True)])
def test_a_bookmark_from_behind_the_last_record_that_compaction_left_is_not_resumed(tmp_path, bookmark, resumes):
    """Of a topic that was read from its beginning, updates and deletes before its end may be missing."""
    past = Record(b"1", b'{"id":"1"}', [("version", b"1")], 10, 0)
    boundary = SimpleNamespace(
        ends={0: 5_001}, oldest=lambda _partition: 0, between=lambda *_, **__: iter([(0, [past]), (0, [])])
    )
    view = StoredView(tmp_path / "view", "orders.sow", "I" * 22, 1, keeps=True)
    feed = KafkaFeed(ORDERS, {}, "orders.sow", group="g", directory=tmp_path, history_bytes=1_000_000)
    try:
        engine = feed._caught_up(boundary, view, SimpleNamespace(delete_retention_ms=lambda _topic: DAY_MS))
        form, place = FORMS["sow_and_delta_subscribe"], {0: bookmark}
        asked = SubscriptionSpec(ORDERS, None, parse_options("oof", **form), **form)
        outcome = engine.connect().resume(asked, "a", Bookmark(place, place))
        assert isinstance(outcome, str) is not resumes, outcome
        assert dict(engine.positions) == {0: 5_001}
    finally:
        view.close()


def test_many_small_batches_have_one_turn_in_a_round():
    """However many calls bring records in one round of the event loop, sockets are looked at after a turn of work."""
    calls, rounds = 100, []

    async def run():
        taken = []

        def take(partition, records):
            taken.extend(records)
            time.sleep(0.001)

        loop, done = asyncio.get_running_loop(), asyncio.Event()
        intake = Intake(take)
        for number in range(calls):
            loop.call_soon(intake.add, 0, [number])
        loop.call_soon(intake.add_call, done.set)
        while not done.is_set():
            await asyncio.sleep(0)
            rounds.append(len(taken))
        return taken

    assert asyncio.run(run()) == list(range(calls))
    most = max(after - before for before, after in zip([0, *rounds], rounds, strict=False))
    assert most <= TURN_S * 1000 + 1


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
