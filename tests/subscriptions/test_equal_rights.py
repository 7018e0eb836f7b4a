"""Subscribers with equal rights share the work of an update, and those with other rights share nothing that shows."""

from __future__ import annotations

import itertools
import json

import pytest

from processor.filter import Filter, compile_filter
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, parse_options
from processor.subscriptions.request.entitlement import Entitlement
from processor.subscriptions.request.select import Select
from tests.subscriptions.desk import CALLS, ORDERS

GROUPS = "projection=[SUM(/qty) AS /qty, COUNT(*) AS /n],grouping=[/customer]"


class CountingFilter(Filter):
    """A filter that counts its evaluations."""

    __slots__ = ("evaluations",)

    def matches(self, *arguments):
        """Evaluate it."""
        self.evaluations = getattr(self, "evaluations", 0) + 1
        return super().matches(*arguments)


class World:
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
def world():
    """An engine without records."""
    return World()


def test_a_condition_is_evaluated_once_for_each_record(world):
    """A condition that a hundred subscribers have with a hundred filters is evaluated once a record of an update."""
    condition = CountingFilter("/qty > 1")
    for number in range(100):
        world.subscribe(f"/px > {number}", right=Entitlement(condition, Select(f"-/x{number % 3}", ORDERS.key)))
    world.put("a", qty=5, px=1000)
    condition.evaluations = 0
    world.put("a", qty=6, px=1000)
    assert condition.evaluations == 2


def test_equal_fields_share_a_message_however_they_are_written(world):
    """Subscribers to the same fields get one message object, and one with other fields gets its own."""
    rights = [right(None, "-/a,-/b"), right("/qty > 0", "-/b, -/a"), right(None, "-/a")]
    connections = [world.subscribe(right=one)[0] for one in rights]
    for connection in connections:
        connection.take(10)
    world.put("k", qty=1, a=2, b=3, c=4)
    [[one], [equal], [other]] = [connection.take(10) for connection in connections]
    assert one is equal
    assert one.data == {"id": "k", "qty": 1, "c": 4}
    assert other.data == {"id": "k", "qty": 1, "b": 3, "c": 4}


def test_a_filter_sees_the_visible_fields_of_its_own_user(world):
    """The answer of a filter for a user who may see the field is not used for one who may not."""
    allowed, hidden = (world.subscribe("/secret = 1", right=right(None, fields))[0] for fields in ("-/x", "-/secret"))
    for connection in (allowed, hidden):
        connection.take(10)
    world.put("k", secret=1)
    assert [message.data for message in allowed.take(10)] == [{"id": "k", "secret": 1}]
    assert hidden.take(10) == []


def test_windows_of_other_fields_have_other_orders(world):
    """Windows by a field are ordered by it for those who may see it, and by the key for the others."""
    windows = [
        world.subscribe(None, "order_by=/secret DESC,top_n=1", right=right("/qty > 0", fields))[1]
        for fields in ("-/x", "-/secret")
    ]
    world.put("a", qty=1, secret=1)
    world.put("b", qty=1, secret=2)
    assert [one.window.keys() for one in windows] == [[b"b"], [b"a"]]


def test_an_oof_of_equal_fields_differs_by_the_right_to_the_record_after(world):
    """Of two users with the same fields, the one who may not see the record after an update gets no part of it."""
    options = "oof"
    users = [world.subscribe("/px < 5", options, right=right(one, "-/x"))[0] for one in (None, "/px < 5")]
    world.put("k", px=1)
    for connection in users:
        connection.take(10)
    world.put("k", px=9)
    [[sees], [sees_not]] = [connection.take(10) for connection in users]
    assert (sees.reason, sees.data["px"]) == ("match", 9)
    assert (sees_not.reason, sees_not.data["px"]) == ("entitlement", 1)


def test_groups_are_computed_once_for_equal_rights(world):
    """Subscriptions with equal rights and groups share them, one that joins later and one that ends included."""
    (first, one), (second, two) = (world.subscribe(None, GROUPS, right=right("/qty > 0")) for _ in range(2))
    assert one.grouping is two.grouping
    world.put("a", customer="c", qty=1)
    late, three = world.subscribe(None, GROUPS, right=right("/qty > 0"))
    assert three.grouping is one.grouping
    first.unsubscribe(one)
    world.put("b", customer="c", qty=2)
    for connection in (second, late):
        rows = [message.data for message in connection.take(10) if message.data is not None]
        assert rows[-1] == {"customer": "c", "qty": 3, "n": 2}
    second.close()
    late.close()
    world.put("a")
    _, four = world.subscribe(None, GROUPS, right=right("/qty > 0"))
    assert four.grouping is not one.grouping
    assert [json.loads(row.value) for row in four.grouping.view.scan()] == [{"customer": "c", "qty": 2, "n": 1}]


@pytest.mark.parametrize("other", [right("/qty > 1"), right("/qty > 0", "-/qty"), None])
def test_groups_of_other_rights_are_others(world, other):
    """Subscriptions with another condition, or other fields, have groups of their own."""
    _, one = world.subscribe(None, GROUPS, right=right("/qty > 0"))
    _, two = world.subscribe(None, GROUPS, right=other)
    assert one.grouping is not two.grouping


def test_a_window_of_groups_follows_updates(world):
    """The first group by a sum is the one with the largest sum after each update, also as groups merge and end."""
    connection, subscription = world.subscribe(None, f"{GROUPS},order_by=/qty DESC,top_n=1,oof")
    held = {}
    for key, customer, qty in (
        ("a", "c", 1),
        ("b", "d", 2),
        ("a", "c", 3),
        ("a", "d", 9),
        ("b", "c", 20),
        ("b", "d", 1),
    ):
        world.put(key, customer=customer, qty=qty)
        for message in connection.take(10):
            if message.command == "oof":
                del held[message.sow_key]
            elif message.data is not None:
                held[message.sow_key] = {**(held.get(message.sow_key, {}) if message.delta else {}), **message.data}
        rows = sorted((json.loads(row.value) for row in subscription.grouping.view.scan()), key=lambda row: -row["qty"])
        assert list(held.values()) == rows[:1]
