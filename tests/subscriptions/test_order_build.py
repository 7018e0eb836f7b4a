"""The order of a window is built in slices between which updates go on, and equals one that is built at once."""

from __future__ import annotations

import json
import random

import pytest

from processor.codec import load_codec
from processor.errors import SowstreamError
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic
from processor.subscriptions.options import parse_options

TOPIC = Topic("orders", load_codec("json"), KeyFields(("/id",)))


def spec(
    filter=None,  # noqa: A002 - AMPS' name
    order="/px",
    top=5,
    skip=0,
    *,
    live=True,
):
    """A window."""
    form = {"snapshot": True, "live": live, "delta": False}
    options = parse_options(None, **form, oof=live, order_by=order, top_n=top, skip_n=skip)
    return SubscriptionSpec(TOPIC, filter, options, **form)


class World:
    """An engine with random records."""

    def __init__(self, seed, count=200):
        self.rng = random.Random(seed)
        self.engine = Engine(TOPIC, MemoryRecords())
        self.offset = 0
        for key in range(count):
            self.write(key)

    def write(self, key=None):
        """Write a random record, or a tombstone."""
        key = self.rng.randrange(250) if key is None else key
        body = None if self.rng.random() < 0.15 else {"id": key, "px": self.rng.randrange(50)}
        value = None if body is None else json.dumps(body).encode()
        self.engine.take(0, [Record(b"%d" % key, value, [("version", b"1")], self.offset, 1)], self.offset)
        self.offset += 1

    def window(self, asked):
        """The keys of a window that is built at once."""
        desk = self.engine.connect()
        desk.subscribe(spec(asked.filter and asked.filter.text, live=False))
        return [m.sow_key for m in desk.take(1_000) if m.command == "sow"]


@pytest.mark.parametrize("seed", range(20))
def test_an_order_built_in_slices_is_the_order_of_now(seed):
    """A window has the records that a new query finds, with any updates between the slices of its order."""
    world = World(seed)
    asked = spec(world.rng.choice([None, "/px > 20"]))
    build = world.engine.prepare(asked)
    slices = 1
    while not build.advance(world.rng.randrange(1, 30)):
        slices += 1
        for _ in range(world.rng.randrange(4)):
            world.write()
    assert slices > 3
    for _ in range(5):
        world.write()
    desk = world.engine.connect()
    running = desk.subscribe(asked)
    assert running.window.places is build.places
    other = world.engine.connect()
    other.subscribe(asked)
    world.write()
    world.engine.release(build)
    for _ in range(50):
        world.write()
    held = [{}, {}]
    for one, records in zip((desk, other), held, strict=True):
        for message in one.take(1_000):
            if message.command == "oof":
                del records[message.sow_key]
            elif message.command in ("sow", "publish"):
                records[message.sow_key] = message.data
    assert held[0] == held[1]
    del build
    desk.close()
    other.close()
    assert sorted(held[0]) == sorted(world.window(asked))


def test_two_requests_for_one_order_share_the_work():
    """A second window of the same filter and order joins the build, and one that cannot wait completes it."""
    world = World(1)
    first, second = world.engine.prepare(spec()), world.engine.prepare(spec(top=9))
    assert first is second
    first.advance(10)
    running = world.engine.connect().subscribe(spec())
    assert first.is_done
    assert running.window.places is first.places
    world.engine.release(first)
    world.engine.release(second)
    assert world.engine.prepare(spec(skip=3)) is None, "a window that runs keeps the order"


def test_a_record_that_cannot_be_parsed_ends_the_build():
    """An unreadable record is an error of the request, before or while the order is built."""
    world = World(1)
    build = world.engine.prepare(spec())
    world.engine.take(0, [Record(b"7", b"{", [("version", b"1")], world.offset, 1)], 1)
    with pytest.raises(SowstreamError):
        build.finish()


def test_a_query_without_a_window_needs_no_order():
    """Nothing is prepared for a subscription without a window."""
    form = {"snapshot": True, "live": True, "delta": False}
    plain = SubscriptionSpec(TOPIC, None, parse_options(None, **form), **form)
    assert World(1).engine.prepare(plain) is None


def test_a_snapshot_pauses_where_nothing_matches():
    """With `scan_max`, `take` returns after so many records without a match, and the snapshot goes on with the next."""
    world = World(1, count=0)
    for key in range(100):
        body = json.dumps({"id": key, "px": key}).encode()
        world.engine.take(0, [Record(b"%d" % key, body, [("version", b"1")], key, 1)], key)
    form = {"snapshot": True, "live": False, "delta": False}
    desk = world.engine.connect(scan_max=10)
    desk.subscribe(SubscriptionSpec(TOPIC, "/px IN (5, 77)", parse_options(None, **form), **form))
    takes, taken = 0, []
    while desk.has_waiting:
        takes += 1
        taken += desk.take(10)
    assert [m.sow_key for m in taken if m.command == "sow"] == ["5", "77"]
    assert takes == 1 + 98 // 10
