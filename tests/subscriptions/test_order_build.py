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
from processor.subscriptions.records import shared_orders
from processor.subscriptions.records.order_build import OrderBuild
from processor.subscriptions.request.subscribe_options import parse_options
from processor.subscriptions.request.top_n import TopN
from processor.subscriptions.request.turn import Turn

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


class ShortTurn(Turn):
    """A turn that is over after some looks at it, in place of a time."""

    LOOKS = 10

    def begin(self):
        """Begin the next turn."""
        self._looks = 0

    @property
    def is_over(self):
        """True with each look after the ninth."""
        self._looks = getattr(self, "_looks", 0) + 1
        return self._looks >= self.LOOKS


class World:
    """An engine with random records."""

    def __init__(self, seed, count=200, turn=None):
        self.rng = random.Random(seed)
        self.engine = Engine(TOPIC, MemoryRecords(), turn=turn)
        self.offset = 0
        for key in range(count):
            self.write(key)

    def write(self, key=None):
        """Write a random record, or a tombstone."""
        key = self.rng.randrange(250) if key is None else key
        body = None if self.rng.random() < 0.15 else {"id": key, "px": self.rng.randrange(50)}
        # As a worker writes it, and in another form, in which the compiled keys leave it to the order.
        separators = (",", ":") if self.rng.random() < 0.8 else None
        value = None if body is None else json.dumps(body, separators=separators).encode()
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


def test_a_snapshot_pauses_when_a_turn_is_over():
    """With turns, `take` returns when the turn is over, also among records that match, and goes on with the next."""
    world = World(1, count=0, turn=ShortTurn())
    for key in range(100):
        body = json.dumps({"id": key, "px": key}).encode()
        world.engine.take(0, [Record(b"%d" % key, body, [("version", b"1")], key, 1)], key)
    form = {"snapshot": True, "live": False, "delta": False}
    desk = world.engine.connect()
    desk.subscribe(SubscriptionSpec(TOPIC, "/px IN (5, 77)", parse_options(None, **form), **form))
    takes, taken = 0, []
    while desk.has_waiting:
        takes += 1
        desk.begin_turn()
        taken += desk.take(10)
    assert [m.sow_key for m in taken if m.command == "sow"] == ["5", "77"]
    assert takes == 1 + 100 // ShortTurn.LOOKS


def short_build(*arguments, **more):
    """The build of an order whose windows begin in few places."""
    return OrderBuild(*arguments, **more, first_places=12, spare_places=2, bucket_keys=5)


class Holder:
    """A connection with a window, and the records that it holds by its messages."""

    def __init__(self, world, asked):
        self.asked, self.desk = asked, world.engine.connect()
        self.running = self.desk.subscribe(asked)
        self.records = {}

    def take(self):
        """Take all messages."""
        for message in self.desk.take(100_000):
            if message.command == "oof":
                del self.records[message.sow_key]
            elif message.command in ("sow", "publish"):
                self.records[message.sow_key] = message.data


def answer(world, asked):
    """The records of a window as a scan and a sort of all records find them, ties by the SOW key."""
    rows = [(TOPIC.value(record), record) for record in world.engine._records._view.scan()]
    chosen = sorted(
        (asked.order.key(record.key, value, TOPIC.metadata_of(record)), record.key.decode(), value)
        for value, record in rows
        if asked.filter is None or asked.filter.matches(value)
    )
    begin = asked.options.skip_n
    return {key: value for _, key, value in chosen[begin:][: asked.options.top_n]}


@pytest.mark.parametrize("filter_text", [None, "/px > 20"])
def test_a_window_that_begins_before_its_order_is_there_follows_updates(random_seed, monkeypatch, filter_text):
    """A window in the first places of an order equals the query after each update while the others are sorted."""
    monkeypatch.setattr(shared_orders, "OrderBuild", short_build)
    world = World(random_seed)
    asked = spec(filter_text, world.rng.choice(["/px", "/px DESC"]), top=5, skip=world.rng.randrange(4))
    build = world.engine.prepare(asked)
    while not build.is_ready(asked.window_depth):
        build.advance(world.rng.randrange(1, 30))
        for _ in range(world.rng.randrange(4)):
            world.write()
    assert not build.is_done, "the window begins early"
    holders = [Holder(world, asked), Holder(world, spec(filter_text, asked.order.text, top=3, skip=1))]
    steps = 0
    while not build.is_done:
        steps += 1
        for _ in range(world.rng.randrange(8)):
            world.write()
        for holder in holders:
            holder.take()
            assert holder.records == answer(world, holder.asked)
        build.advance(1)
    assert steps > 5
    world.engine.release(build)
    for _ in range(50):
        world.write()
    places = build.places
    assert list(places.order) == sorted(places.sort_keys.values())
    for holder in holders:
        holder.take()
        assert holder.records == answer(world, holder.asked)


def test_a_window_scrolls_and_shrinks_before_its_order_is_there(random_seed, monkeypatch):
    """With the others not sorted yet, a window may move behind the first places, and its records may be deleted."""
    monkeypatch.setattr(shared_orders, "OrderBuild", short_build)
    world = World(random_seed)
    asked = spec()
    build = world.engine.prepare(asked)
    while not build.is_ready(asked.window_depth):
        build.advance(20)
    holder = Holder(world, asked)
    holder.take()
    for _ in range(15):  # More than the spare places.
        first = min(holder.records)
        world.engine.take(0, [Record(first.encode(), None, [("version", b"9")], world.offset, 1)], world.offset)
        world.offset += 1
        holder.take()
        assert holder.records == answer(world, asked)
    assert not build.is_done
    holder.asked = spec(top=5, skip=40)
    holder.running = holder.desk.replace(holder.running, holder.asked)
    for _ in range(30):
        holder.take()
        assert holder.records == answer(world, holder.asked)
        world.write()


def test_a_query_without_updates_needs_the_first_places_alone(random_seed, monkeypatch):
    """Its order is dropped with its answer; when it is asked for again, all of the order is wanted."""
    monkeypatch.setattr(shared_orders, "OrderBuild", short_build)
    world = World(random_seed)
    asked = spec(live=False)
    for is_wanted in (False, True):
        build = world.engine.prepare(asked)
        while not build.is_ready(asked.window_depth):
            build.advance(10)
        holder = Holder(world, asked)
        holder.take()
        assert holder.records == answer(world, asked)
        assert (build.is_done, build.is_wanted) == (False, is_wanted)
        world.engine.release(build)
        assert not world.engine._orders
    build = world.engine.prepare(asked)
    build.finish()
    world.engine.release(build)
    assert world.engine._orders


def test_a_slice_reads_so_many_records_and_no_more():
    """A scan in slices reads at most its number of records at once, and a window is ready with the last of them."""
    world = counted(300)
    read = []
    reading = world.engine._orders._records
    world.engine._orders._records = lambda selection: (read.append(1) or one for one in reading(selection))
    build = world.engine.prepare(spec())
    slices = 0
    while not build.is_ready(5):
        before = len(read)
        build.advance(7)
        slices += 1
        assert len(read) - before <= 7
    assert len(read) == 300
    assert slices <= 300 // 7 + 3


def counted(count):
    """An engine with records whose `px` is their number."""
    world = World(1, count=0)
    for key in range(count):
        body = json.dumps({"id": key, "px": key}).encode()
        world.engine.take(0, [Record(b"%d" % key, body, [("version", b"1")], key, 1)], key)
    return world


def test_records_may_all_be_deleted_before_the_scan_has_ended(monkeypatch):
    """Deletes of records that were read already leave no place, though the first places run out meanwhile."""
    monkeypatch.setattr(shared_orders, "OrderBuild", short_build)
    world = counted(30)
    build = world.engine.prepare(spec())
    build.advance(30)
    for at, key in enumerate(reversed(range(30))):  # The last update is the first to be taken.
        world.engine.take(0, [Record(b"%d" % key, None, [("version", b"2")], 30 + at, 1)], 1)
    slices = 0
    while not build.advance(1):
        slices += 1
        assert slices < 100
    assert build.is_ready(5)
    assert not build.places.sort_keys
    assert not build.places.order


def test_the_window_of_an_earlier_time_may_lie_behind_the_first_places(monkeypatch):
    """The window before records came in is found though its keys are not sorted yet."""
    monkeypatch.setattr(shared_orders, "OrderBuild", short_build)
    build = counted(100).engine.prepare(spec())
    while not build.is_ready(5):
        build.advance()
    assert not build.is_done
    came = {b"%d" % key: None for key in range(20)}
    assert TopN(5, 0, build.places).keys_before(came) == [b"20", b"21", b"22", b"23", b"24"]
