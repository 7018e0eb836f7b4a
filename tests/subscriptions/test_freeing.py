"""Large containers without a reference are freed in turns, and not in one step that others wait for."""

from __future__ import annotations

import gc
import weakref

import pytest

from processor.record import Record
from processor.subscriptions.records.update_history import UpdateHistory
from processor.subscriptions.request import turn as turns
from processor.subscriptions.request.top_n import Places
from processor.subscriptions.request.turn import LargeDict, LargeSet, Turn
from tests.subscriptions.test_order_build import ShortTurn
from tests.subscriptions.test_turns import Holder, World, spec


class Thing:
    """An object that can be observed, also as a record."""

    value = b""


@pytest.fixture(autouse=True)
def _few_are_large(monkeypatch):
    monkeypatch.setattr(turns, "LARGE", 20)
    monkeypatch.setattr("processor.subscriptions.records.grouping.LARGE", 20)
    monkeypatch.setattr(turns, "_STEP_ENTRIES", 1)


def things(count):
    """Some objects, and the set of those that are still there."""
    every = [Thing() for _ in range(count)]
    return every, weakref.WeakSet(every)


def prices(desk):
    """The prices of all records that wait for a subscriber."""
    messages = []
    while desk.has_waiting:
        desk.begin_turn()
        messages += desk.take(1_000)
    return [message.data["px"] for message in messages if message.data]


@pytest.mark.parametrize("kind", ["dict", "nested", "set"])
def test_a_large_container_is_freed_in_turns(kind):
    """The entries of a container without a reference go turn by turn, a part in each, until none is left."""
    turn = ShortTurn()
    every, left = things(100)
    container = LargeSet(turn) if kind == "set" else LargeDict(turn)
    if kind == "set":
        container.update(every)
    elif kind == "dict":
        container.update(enumerate(every))
    else:
        container.update({0: dict(enumerate(every)), **dict.fromkeys(range(1, 21))})
    every.clear()
    del container
    assert len(left) == 100
    counts = []
    while turn._left:
        turn.free()
        counts.append(len(left))
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)
    assert len(counts) >= 100 // ShortTurn.LOOKS


@pytest.mark.parametrize(("turn", "count"), [(None, 100), (Turn(), 20)])
def test_a_small_container_and_one_without_turns_are_freed_at_once(turn, count):
    """Little is freed at once, and so is everything of an engine that has a thread of its own."""
    every, left = things(count)
    container = LargeDict(turn)
    container.update(enumerate(every))
    every.clear()
    del container
    assert not left
    assert turn is None or not turn._left


@pytest.mark.parametrize(
    "options",
    [
        {"order_by": "/px"},
        {"order_by": "/px", "top_n": 5},
        {"projection": "COUNT_DISTINCT(/id) AS /n", "grouping": ["/desk"]},
    ],
    ids=["order", "window", "groups"],
)
def test_what_an_abandoned_build_has_read_is_freed_in_turns(options):
    """A client that leaves before its order or its groups are ready leaves them to later turns, and no cycle."""
    world = World(3)
    turn = world.engine._records.turn
    gc.collect()
    gc.disable()
    try:
        build = world.engine.prepare(spec(None, options))
        while len(build.grouping._members if "projection" in options else build.places.sort_keys) < 40:
            build.advance()
        kept = weakref.ref(build)
        world.engine.release(build)
        del build
        assert kept() is None
        assert turn._left
        for _ in range(200):
            world.engine.advance()
        assert not turn._left
    finally:
        gc.enable()


def test_an_order_that_is_being_sorted_is_no_cycle_when_it_is_abandoned():
    """The places of an order that was read but not sorted refer to its build until it is let go."""
    world = World(3)
    gc.collect()
    gc.disable()
    try:
        asked = spec(None, {"order_by": "/px"})
        build = world.engine.prepare(asked)
        build._first_places = 5
        while build.places.later is None:
            build.advance()
        kept = weakref.ref(build)
        world.engine.release(build)
        del build
        assert kept() is None
    finally:
        gc.enable()


def test_the_groups_of_a_subscription_that_has_ended_are_freed_in_turns():
    """The last subscription to some groups leaves their members to later turns, in which others work."""
    world = World(5)
    asked = spec(None, {"projection": "COUNT_DISTINCT(/id) AS /n", "grouping": ["/desk"]}, oof=False)
    holder = Holder(world)
    build = world.prepared(asked)
    holder.desk.subscribe(asked, build=build)
    world.engine.release(build)
    holder.take_all(changes=3)
    members = build.grouping._members
    count = len(members)
    assert count > 20
    del build
    holder.desk.close()
    del holder
    assert len(members) == count
    world.engine.advance()
    assert 0 < len(members) < count
    for _ in range(200):
        world.engine.advance()
    assert not members


def test_the_values_of_filters_that_have_ended_leave_the_index_in_turns():
    """A connection ends without the work to take the lists of its filters out of the index; one that follows has it."""
    world = World(5)
    index = world.engine._routes._index
    lists = [f"/id IN ({', '.join(map(str, range(first, first + 150)))})" for first in range(25)]
    desk = world.engine.connect()
    for text in lists:
        desk.subscribe(spec(text, {}))
    desk.close()
    assert len(index) == len(lists)
    next_desk = world.engine.connect()
    next_desk.subscribe(spec(lists[0], {}, oof=False))
    prices(next_desk)
    world.write(7, px=3)
    assert prices(next_desk) == [3]
    turns = 0
    while len(index) > 1:
        turns += 1
        world.engine.advance()
    assert turns > 1
    world.write(7, px=4)
    assert prices(next_desk) == [4]


def test_the_values_of_a_short_filter_leave_the_index_at_once():
    """The index has no place of a filter with few values when its subscription has ended."""
    world = World(5)
    desk = world.engine.connect()
    desk.unsubscribe(desk.subscribe(spec("/desk = 'd1'", {})))
    assert not len(world.engine._routes._index)


def test_an_update_beyond_the_limit_of_the_history_is_freed_at_once():
    """The history holds no more past updates than its limit has room for: 24 of 402 bytes in 10,000."""
    history = UpdateHistory(10_000)
    history.begin(0, 0)
    every, left = things(1_500)
    for offset in range(len(every)):
        history.add(0, b"k", every.pop(), Record(b"k", b"v", [], offset, 1))
        assert len(left) - len(every) == min(offset + 1, 24)
    assert [update.offset for _, update in history.since({0: 1_480})] == list(range(1_480, 1_500))
    assert not history.reaches({0: 1_475})


def test_a_snapshot_is_whole_although_its_build_is_gone():
    """The records of an ordered snapshot stay as long as it is taken, and are freed behind it."""
    world = World(9)
    options = {"order_by": "/px, /id"}
    asked = spec(None, options, live=False)
    build = world.prepared(asked)
    desk = world.engine.connect()
    desk.subscribe(asked, build=build)
    expected = world.answer(None, options)
    world.engine.release(build)
    del build
    rows = []
    while desk.has_waiting:
        desk.begin_turn()
        rows += [(message.sow_key, message.data) for message in desk.take(7) if message.command == "sow"]
        world.engine.advance()
    assert rows == expected


def test_places_are_freed_in_turns():
    """The sort keys of an order are left to later turns, and the order itself."""
    turn = ShortTurn()
    places = Places(turn)
    places.load((b"%d" % number, (number, b"%d" % number)) for number in range(50))
    order = places.order
    del places
    assert len(order) == 50
    turn.free()
    assert 0 < len(order) < 50
    while turn._left:
        turn.free()
    assert not order
