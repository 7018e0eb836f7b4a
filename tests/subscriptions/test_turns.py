"""An engine with turns works as far as one goes: a subscriber holds the answer of its query all the same."""

from __future__ import annotations

import json
import random

import pytest

from processor.codec import load_codec
from processor.errors import ConfigurationError, GroupsLost, Stop, SubscriptionFailed
from processor.filter import compile_filter
from processor.filter.aggregate import extremes
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic
from processor.subscriptions.records import grouping, shared_orders
from processor.subscriptions.records.update_history import UpdateHistory
from processor.subscriptions.request.subscribe_options import parse_options
from tests.subscriptions.test_order_build import ShortTurn

TOPIC = Topic("orders", load_codec("json"), KeyFields(("/id",)))
KEYS = 120

OPTIONS = {
    "all": {},
    "order": {"order_by": "/px DESC"},
    "window": {"order_by": "/px", "top_n": 7, "skip_n": 3},
    "groups": {"projection": "SUM(/px) AS /sum, MIN(/px) AS /low, COUNT(*) AS /n", "grouping": ["/desk"]},
    "ordered groups": {"projection": "SUM(/px) AS /sum", "grouping": ["/desk"], "order_by": "/sum", "top_n": 2},
}
FILTERS = {"none": None, "some": "/px > 20", "index": "/desk = 'd1'", "clock": "UNIX_TIMESTAMP() > 0 AND /px > 20"}


def spec(filter_text, options, *, live=True, oof=True):
    """A request."""
    form = {"snapshot": True, "live": live, "delta": False}
    oof = oof and live and not (filter_text or "").startswith("UNIX")
    return SubscriptionSpec(TOPIC, filter_text, parse_options(None, **form, oof=oof, **options), **form)


class World:
    """An engine with short turns and random records, which change in between."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.engine = Engine(TOPIC, MemoryRecords(), history=UpdateHistory(), turn=ShortTurn())
        self.offset = 0
        for key in range(KEYS):
            self.write(key)

    def write(self, key=None, **fields):
        """Write a random record, or a tombstone."""
        rng = self.rng
        key = rng.randrange(KEYS + 20) if key is None else key
        body = {"id": key, "px": rng.randrange(50), "desk": f"d{rng.randrange(4)}", **fields}
        value = None if not fields and rng.random() < 0.15 else json.dumps(body).encode()
        self.engine.take(0, [Record(b"%d" % key, value, [("version", b"1")], self.offset, 1)], self.offset)
        self.offset += 1

    def prepared(self, asked):
        """The build of a request, ready; records change between its turns."""
        build = self.engine.prepare(asked)
        while build is not None and not build.is_ready(asked.window_depth):
            build.advance()
            self.change()
        return build

    def change(self):
        """Change some records."""
        for _ in range(self.rng.randrange(4)):
            self.write()

    def answer(self, filter_text, options):
        """The rows of a query over the records of now, in order, by an engine without turns."""
        plain = Engine(TOPIC, MemoryRecords())
        records = [one._replace(offset=at) for at, one in enumerate(self.engine._records._view.scan())]
        plain.take(0, records, 0)
        desk = plain.connect()
        desk.subscribe(spec(filter_text, options, live=False))
        return [(m.sow_key, m.data) for m in desk.take(10_000) if m.command == "sow"]


class Holder:
    """A subscriber, and the records that it holds."""

    def __init__(self, world):
        self.world, self.desk, self.held = world, world.engine.connect(), {}

    def take(self):
        """Take the messages of one turn."""
        self.desk.begin_turn()
        for message in self.desk.take(1_000):
            assert message.topic == TOPIC.name, "a pause is no message"
            if message.command == "oof":
                self.held.pop(message.sow_key, None)
            elif message.command in ("sow", "publish"):
                self.held[message.sow_key] = message.data

    def take_all(self, *, changes):
        """Take all messages; records change in between."""
        while self.desk.has_waiting:
            self.take()
            if changes:
                self.world.change()
                changes -= 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("filter_text", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_subscriber_holds_the_answer_of_its_query(seed, filter_text, options):
    """Records change between the turns of a build, of the snapshot and after it; in the end nothing is wrong."""
    world = World(seed)
    for _ in range(2):
        world.engine._records.memo_index.records(compile_filter("/desk = 'd1'"))
    holder, asked = Holder(world), spec(filter_text, options)
    build = world.prepared(asked)
    holder.desk.subscribe(asked, build=build)
    if build is not None:
        world.engine.release(build)
    assert not world.engine._sharing.groupings
    for _ in range(30):
        world.engine.advance()
        world.change()
    holder.take_all(changes=20)
    expected = dict(world.answer(filter_text, options))
    if filter_text is not None and filter_text.startswith("UNIX") and options != OPTIONS["groups"]:
        # Without an oof, records that left stay.
        assert {key: holder.held.get(key) for key in expected} == expected
    else:
        assert holder.held == expected


@pytest.mark.parametrize("filter_text", [None, "/px > 20"])
def test_a_query_has_the_records_of_one_moment_in_order(filter_text):
    """A snapshot in an order is of the moment at which it begins, also if records change while it is taken."""
    world = World(7)
    options = {"order_by": "/px DESC, /id"}
    asked = spec(filter_text, options, live=False)
    build = world.prepared(asked)
    desk = world.engine.connect()
    expected = world.answer(filter_text, options)
    desk.subscribe(asked, build=build)
    world.engine.release(build)
    rows = []
    while desk.has_waiting:
        desk.begin_turn()
        rows += [(m.sow_key, m.data) for m in desk.take(10) if m.command == "sow"]
        world.change()
    assert rows == expected


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("begin", ["all", "order", "window"])
@pytest.mark.parametrize("end", ["all", "order", "window"])
def test_a_replaced_subscription_holds_the_answer_of_its_new_query(seed, begin, end):
    """Windows and others replace each other, by filters with and without an index, while records change."""
    world = World(seed)
    texts = [None, "/px > 20", "/px <= 20", "/desk = 'd1'"]
    holder = Holder(world)
    asked = spec(world.rng.choice(texts), OPTIONS[begin])
    running = None
    for number in range(4):
        build = world.prepared(asked)
        if running is None:
            running = holder.desk.subscribe(asked, build=build)
        else:
            running = holder.desk.replace(running, asked, build=build)
        if build is not None:
            world.engine.release(build)
        if number % 2:
            holder.take_all(changes=5)
        text = world.rng.choice(texts)
        asked = spec(text, OPTIONS[(end, begin)[number % 2]])
    holder.take_all(changes=5)
    last = running.spec
    options = {"order_by": "/px", "top_n": 7, "skip_n": 3} if last.options.is_window else {}
    assert holder.held == dict(world.answer(last.filter and last.filter.text, options))


@pytest.mark.parametrize("options", [OPTIONS["all"], OPTIONS["window"], OPTIONS["groups"]])
def test_all_records_leave_a_withdrawn_subscription(options):
    """The records leave turn by turn, and each that the subscriber has does."""
    world = World(3)
    holder, asked = Holder(world), spec("/px > 20", options)
    build = world.prepared(asked)
    running = holder.desk.subscribe(asked, build=build)
    holder.take_all(changes=0)
    assert holder.held
    assert holder.desk.withdraw(running)
    holder.take_all(changes=5)
    assert holder.held == {}


def test_an_index_that_is_built_in_turns_finds_what_a_scan_finds():
    """Records change while an index is built; then it has all keys, and queries need no scan."""
    world = World(11)
    index = world.engine._records.memo_index
    selection = compile_filter("/desk = 'd1'")
    assert index.records(selection) is None
    assert index.records(selection) is None, "it is not built at once"
    turns = 0
    while index.records(selection) is None:
        world.engine.advance()
        world.change()
        turns += 1
    assert turns > 5
    for _ in range(20):
        world.change()
    keys = {record.key for record in index.records(selection)}
    scanned = {one.key for one in world.engine._records._view.scan() if json.loads(one.value)["desk"] == "d1"}
    assert keys == scanned


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order_by": "/px", "top_n": 31}, "at most 30 records"),
        ({"order_by": "/px", "skip_n": 3}, "at most 30 records"),
        ({"conflation": "1s", "conflation_key": ["/desk"]}, "more than 30 records match"),
        ({"projection": "SUM(/px) AS /px", "grouping": ["/id"]}, "more than 30 groups"),
    ],
)
def test_what_does_not_fit_in_a_turn_is_refused_with_the_reason(monkeypatch, options, text):
    """Too large windows, groups by `conflation_key` and too many groups are refused when they are prepared."""
    for name in ("WINDOW_MAX", "CONFLATED_MAX"):
        monkeypatch.setattr(shared_orders, name, 30)
    monkeypatch.setattr(grouping, "GROUPS_MAX", 30)
    world = World(1)
    with pytest.raises(ConfigurationError, match=text):
        world.prepared(spec(None, options, oof=False))


def test_a_large_group_that_has_lost_its_least_value_begins_again(monkeypatch):
    """A group whose next least value is not known ends its subscription with the reason to begin again."""
    monkeypatch.setattr(extremes, "KEPT_MAX", 4)
    monkeypatch.setattr(grouping, "_REBUILT_MAX", 10)
    world = World(1)
    asked = spec(None, {"projection": "MIN(/px) AS /low", "grouping": ["/none"]})
    holder = Holder(world)
    holder.desk.subscribe(asked, build=world.prepared(asked))
    holder.take_all(changes=0)
    for key in range(KEYS + 20):
        world.write(key, px=100 + key)
    with pytest.raises(GroupsLost):
        holder.take_all(changes=0)


@pytest.mark.parametrize("kind", ["groups", "order", "window"])
@pytest.mark.parametrize("comes", ["before", "while", "behind"])
def test_a_build_with_an_unreadable_record_is_refused_to_all_that_wait_for_it(kind, comes):
    """A build fails for each of its users if a record cannot be read, also one that comes when it is ready."""
    world = World(1)
    asked = spec(None, OPTIONS[kind])
    bad = [Record(b"bad", b"{", [("version", b"1")], world.offset, 1)]
    if comes == "before":
        world.engine.take(0, bad, 0)
    builds = [world.engine.prepare(asked) for _ in range(2)]
    if comes == "behind":
        for build in builds:
            complete(build)
    if comes != "before":
        world.engine.take(0, bad, 0)
    for build in builds:
        with pytest.raises(Stop, match="is not what a worker writes"):
            complete(build)
    assert world.engine.prepare(asked) not in builds


@pytest.mark.parametrize("kind", ["groups", "order"])
def test_an_internal_error_of_a_build_ends_no_subscription(monkeypatch, kind):
    """A build that fails with an error of the program is refused; running subscriptions get the update."""
    world = World(1)
    holder = Holder(world)
    holder.desk.subscribe(spec(None, {}))
    holder.take_all(changes=0)
    asked = spec(None, OPTIONS[kind])
    build = world.engine.prepare(asked)
    complete(build)
    place, call = (build.grouping, "change") if kind == "groups" else (build.places, "put")
    monkeypatch.setattr(place, call, lambda *_: {}.pop("a fault"))
    world.write(7, px=-1)
    holder.take()
    assert holder.held["7"]["px"] == -1
    with pytest.raises((SubscriptionFailed, KeyError)):
        complete(build)
    assert build.has_failed


def complete(build):
    """Take all turns of a build."""
    while not build.is_ready(0):
        build.advance()


def test_a_resumed_subscription_holds_the_answer_of_its_query():
    """Changes since a bookmark come turn by turn, and a pause is no message."""
    world = World(7)
    query = spec("/px > 20", {})
    before = Holder(world)
    subscription = before.desk.subscribe(query, "s")
    before.take_all(changes=0)
    bookmark = before.desk.bookmark(subscription)
    for _ in range(200):
        world.write()
    after = Holder(world)
    after.held = before.held
    assert not isinstance(after.desk.resume(query, "s", bookmark), str)
    after.take_all(changes=3)
    assert after.held == dict(world.answer("/px > 20", {}))
