"""Work that equal subscriptions share: orders, and filters of equal rights."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from processor.errors import FilterError
from processor.filter import Filter, compile_filter
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, parse_options
from processor.subscriptions.records.shared_orders import ORDERS_MAX
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.record_order import SlicedSort
from processor.subscriptions.request.select import Select
from tests.subscriptions.desk import CALLS, ORDERS
from tests.subscriptions.test_memo_index import Unscanned
from tests.subscriptions.test_order_build import TOPIC, World, spec


class ScanningWorld(World):
    """An engine with random records over a view that counts its scans."""

    def __init__(self, seed, count=200, orders=()):
        self.view = Unscanned()
        self.rng = random.Random(seed)
        self.engine = Engine(TOPIC, self.view, orders=orders)
        self.offset = 0
        for key in range(count):
            self.write(key)
        self.engine.index()

    def take_window(self, asked):
        """Build the order of a window in slices and begin it; returns its connection and the keys of its snapshot."""
        build = self.engine.prepare(asked)
        if build is not None:
            build.finish()
        desk = self.engine.connect()
        desk.subscribe(asked)
        if build is not None:
            self.engine.release(build)
        return desk, [m.sow_key for m in desk.take(1_000) if m.command == "sow"]

    def expected(self, asked):
        """The keys of a window, from a scan of all records and a sort."""
        values = [(TOPIC.value(record), record) for record in self.view.scan()]
        self.view.scans -= 1
        rows = [
            (asked.order.key(record.key, value, TOPIC.metadata_of(record)), record.key.decode())
            for value, record in values
            if asked.filter is None or asked.filter.matches(value)
        ]
        return [key for _, key in sorted(rows)][asked.options.skip_n :][: asked.options.top_n]


@pytest.mark.parametrize("order", ["/px DESC, /id", "/px desc,/id", " /px  DESC , /id ASC", None])
def test_a_window_of_a_declared_order_scans_nothing(random_seed, order):
    """A window of all records in a declared order, however it is written, is right at any time without a scan."""
    world = ScanningWorld(random_seed, orders=["/px DESC, /id", ""])
    before = world.view.scans
    asked = spec(order=order, top=7, skip=3)
    for _ in range(30):
        for _ in range(10):
            world.write()
        desk, keys = world.take_window(asked)
        assert keys == world.expected(asked)
        if world.rng.random() < 0.5:
            world.write()  # Put in its place by the window that runs.
        desk.close()
    assert world.view.scans == before


def test_the_order_of_a_window_that_ended_is_there_for_the_next(random_seed):
    """The next window of the same filter and order scans nothing, although records changed when no window ran."""
    world = ScanningWorld(random_seed)
    asked = spec("/px > 10")
    world.take_window(asked)[0].close()
    before = world.view.scans
    for _ in range(20):
        for _ in range(10):
            world.write()
        desk, keys = world.take_window(asked)
        assert keys == world.expected(asked)
        desk.close()
    assert world.view.scans == before


def test_few_orders_are_kept():
    """Of more orders than may be kept, those that were asked for last are there without a scan."""
    world = ScanningWorld(1, orders=["/px DESC"])
    texts = [f"/px > {number}" for number in range(ORDERS_MAX + 1)]
    for text in texts:
        world.take_window(spec(text))[0].close()
    before = world.view.scans
    for text in (None, *texts[1:]):
        world.take_window(spec(text, order="/px DESC" if text is None else "/px"))[0].close()
    assert world.view.scans == before
    world.take_window(spec(texts[0]))[0].close()
    assert world.view.scans == before + 1


@pytest.mark.parametrize("runs", [True, False])
def test_an_order_that_missed_an_update_is_built_again(runs):
    """After an unreadable record, which ends a running window, the next window is built again, and is right."""
    world = ScanningWorld(1, orders=["/px"])
    asked = spec()
    if runs:
        world.take_window(asked)
    world.engine.take(0, [Record(b"7", b"{", [("version", b"1")], world.offset, 1)], 1)
    world.offset += 1
    world.engine.take(0, [Record(b"7", None, [("version", b"2")], world.offset, 1)], 1)
    world.offset += 1
    desk, keys = world.take_window(asked)
    assert keys == world.expected(asked)
    desk.close()


def test_a_wrong_declared_order_is_refused():
    """An order that cannot be meant is an error of the settings."""
    with pytest.raises(FilterError, match="/px >"):
        ScanningWorld(1, orders=["/px >"])


def test_keys_are_sorted_in_slices(random_seed):
    """The parts together are the sorted keys, with those added meanwhile, and none is much larger than a slice."""
    rng = random.Random(random_seed)
    for count in (0, 1, 499, 5_000):
        keys = [(rng.randrange(50), b"%d" % number) for number in range(count)]
        above = rng.choice([None, (25, b"")])
        wanted = [key for key in keys if above is None or key >= above]
        slices, parts = SlicedSort(list(keys), above), []
        while not slices.is_done:
            parts.append(slices.advance(700))
            added = (rng.randrange(60), b"n%d" % len(parts))
            if not slices.is_done and (slices.bound is None or added >= slices.bound):
                slices.add(added)
                wanted.append(added)
        assert [key for part in parts for key in part] == sorted(wanted)
        assert max(map(len, parts)) < 3_500


GROUPS = "projection=[SUM(/qty) AS /qty, COUNT(*) AS /n],grouping=[/customer]"


class CountingFilter(Filter):
    """A filter that counts its evaluations."""

    __slots__ = ("evaluations",)

    def matches(self, *arguments):
        """Evaluate it."""
        self.evaluations = getattr(self, "evaluations", 0) + 1
        return super().matches(*arguments)


class RightsWorld:
    """An engine and the records that it takes."""

    def __init__(self):
        self.engine = Engine(ORDERS, MemoryRecords())
        self.engine.open(0, 0)
        self.written = itertools.count()

    def put(self, key, **fields):
        """Write a record, or a tombstone without fields."""
        offset = next(self.written)
        value = json.dumps({"id": key, **fields}).encode() if fields else None
        headers = [("version", b"%d" % (offset + 1))]
        self.engine.take(0, [Record(key.encode(), value, headers, offset, 0)], offset)

    def subscribe(self, filter=None, options=None, *, right=None):  # noqa: A002
        """A subscription with a snapshot and deltas on a connection of its own."""
        how = CALLS["sow_and_delta_subscribe"]
        spec = SubscriptionSpec(ORDERS, filter, parse_options(options, **how), **how, entitlement=right)
        connection = self.engine.connect()
        return connection, connection.subscribe(spec, "1")


def right(condition=None, fields=None):
    """The right to records that match a condition, and to some fields of them."""
    own = None if condition is None else compile_filter(condition)
    return Entitlement(own, None if fields is None else Select(fields, ORDERS.key))


@pytest.fixture
def rights_world():
    """An engine without records."""
    return RightsWorld()


def test_a_condition_is_evaluated_once_for_each_record(rights_world):
    """A condition that a hundred subscribers have with a hundred filters is evaluated once a record of an update."""
    condition = CountingFilter("/qty > 1")
    for number in range(100):
        rights_world.subscribe(f"/px > {number}", right=Entitlement(condition, Select(f"-/x{number % 3}", ORDERS.key)))
    rights_world.put("a", qty=5, px=1000)
    condition.evaluations = 0
    rights_world.put("a", qty=6, px=1000)
    assert condition.evaluations == 2


def test_equal_fields_share_a_message_however_they_are_written(rights_world):
    """Subscribers to the same fields get one message object, and one with other fields gets its own."""
    rights = [right(None, "-/a,-/b"), right("/qty > 0", "-/b, -/a"), right(None, "-/a")]
    connections = [rights_world.subscribe(right=one)[0] for one in rights]
    for connection in connections:
        connection.take(10)
    rights_world.put("k", qty=1, a=2, b=3, c=4)
    [[one], [equal], [other]] = [connection.take(10) for connection in connections]
    assert one is equal
    assert one.data == {"id": "k", "qty": 1, "c": 4}
    assert other.data == {"id": "k", "qty": 1, "b": 3, "c": 4}


def test_a_filter_sees_the_visible_fields_of_its_own_user(rights_world):
    """The answer of a filter for a user who may see the field is not used for one who may not."""
    allowed, hidden = (
        rights_world.subscribe("/secret = 1", right=right(None, fields))[0] for fields in ("-/x", "-/secret")
    )
    for connection in (allowed, hidden):
        connection.take(10)
    rights_world.put("k", secret=1)
    assert [message.data for message in allowed.take(10)] == [{"id": "k", "secret": 1}]
    assert hidden.take(10) == []


def test_windows_of_other_fields_have_other_orders(rights_world):
    """Windows by a field are ordered by it for those who may see it, and by the key for the others."""
    windows = [
        rights_world.subscribe(None, "order_by=/secret DESC,top_n=1", right=right("/qty > 0", fields))[1]
        for fields in ("-/x", "-/secret")
    ]
    rights_world.put("a", qty=1, secret=1)
    rights_world.put("b", qty=1, secret=2)
    assert [one.window.keys() for one in windows] == [[b"b"], [b"a"]]


def test_an_oof_of_equal_fields_differs_by_the_right_to_the_record_after(rights_world):
    """Of two users with the same fields, the one who may not see the record after an update gets no part of it."""
    options = "oof"
    users = [rights_world.subscribe("/px < 5", options, right=right(one, "-/x"))[0] for one in (None, "/px < 5")]
    rights_world.put("k", px=1)
    for connection in users:
        connection.take(10)
    rights_world.put("k", px=9)
    [[sees], [sees_not]] = [connection.take(10) for connection in users]
    assert (sees.reason, sees.data["px"]) == ("match", 9)
    assert (sees_not.reason, sees_not.data["px"]) == ("entitlement", 1)


def test_groups_are_computed_once_for_equal_rights(rights_world):
    """Subscriptions with equal rights and groups share them, one that joins later and one that ends included."""
    (first, one), (second, two) = (rights_world.subscribe(None, GROUPS, right=right("/qty > 0")) for _ in range(2))
    assert one.grouping is two.grouping
    rights_world.put("a", customer="c", qty=1)
    late, three = rights_world.subscribe(None, GROUPS, right=right("/qty > 0"))
    assert three.grouping is one.grouping
    first.unsubscribe(one)
    rights_world.put("b", customer="c", qty=2)
    for connection in (second, late):
        rows = [message.data for message in connection.take(10) if message.data is not None]
        assert rows[-1] == {"customer": "c", "qty": 3, "n": 2}
    second.close()
    late.close()
    rights_world.put("a")
    _, four = rights_world.subscribe(None, GROUPS, right=right("/qty > 0"))
    assert four.grouping is not one.grouping
    assert [json.loads(row.value) for row in four.grouping.view.scan()] == [{"customer": "c", "qty": 2, "n": 1}]


@pytest.mark.parametrize("other", [right("/qty > 1"), right("/qty > 0", "-/qty"), None])
def test_groups_of_other_rights_are_others(rights_world, other):
    """Subscriptions with another condition, or other fields, have groups of their own."""
    _, one = rights_world.subscribe(None, GROUPS, right=right("/qty > 0"))
    _, two = rights_world.subscribe(None, GROUPS, right=other)
    assert one.grouping is not two.grouping


def test_a_window_of_groups_follows_updates(rights_world):
    """The first group by a sum is the one with the largest sum after each update, also as groups merge and end."""
    connection, subscription = rights_world.subscribe(None, f"{GROUPS},order_by=/qty DESC,top_n=1,oof")
    held = {}
    for key, customer, qty in (
        ("a", "c", 1),
        ("b", "d", 2),
        ("a", "c", 3),
        ("a", "d", 9),
        ("b", "c", 20),
        ("b", "d", 1),
    ):
        rights_world.put(key, customer=customer, qty=qty)
        for message in connection.take(10):
            if message.command == "oof":
                del held[message.sow_key]
            elif message.data is not None:
                held[message.sow_key] = {**(held.get(message.sow_key, {}) if message.delta else {}), **message.data}
        rows = sorted((json.loads(row.value) for row in subscription.grouping.view.scan()), key=lambda row: -row["qty"])
        assert list(held.values()) == rows[:1]
