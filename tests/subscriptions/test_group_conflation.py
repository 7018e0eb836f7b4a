"""Groups of a subscription: their rows, and their conflation."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.codec import load_codec
from processor.errors import ConfigurationError
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic
from processor.subscriptions.conflation_buffers import Deadlines
from processor.subscriptions.request.subscribe_options import parse_options
from tests.subscriptions.desk import Desk


def test_the_earliest_comes_first():
    """Deadlines come earliest first, equal ones in the order of insertion, and later ones stay."""
    due = Deadlines()
    for item, time_ms in (("c", 3), ("a", 1), ("b", 1), ("d", 4)):
        due.put(item, time_ms)
    assert due.first_ms == 1
    assert due.pop(3) == ["a", "b", "c"]
    assert due.pop(3) == []
    assert due.first_ms == 4
    assert len(due) == 1
    assert "d" in due
    assert "a" not in due


def test_a_discarded_item_does_not_come():
    """A discarded item does not come, also if it was put with several times."""
    due = Deadlines()
    due.put("a", 1)
    due.put("b", 2)
    due.discard("a")
    due.discard("nobody")
    assert due.first_ms == 2
    due.put("a", 5)
    assert due.pop(4) == ["b"]
    assert due.pop(5) == ["a"]
    assert due.first_ms is None


def test_a_discarded_item_takes_no_memory():
    """A discarded item takes no memory, for any of its times."""
    due = Deadlines()
    due.put("stays", 0)
    for number in range(10_000):
        due.put(number, number)
        due.discard(number)
    assert len(due._heap) < 200
    assert due.pop(10**9) == ["stays"]


def test_random_changes_agree_with_a_sorted_list():
    """Random puts, discards and pops give the results of a sorted list."""
    for seed in range(10):
        rng, due, listed = random.Random(seed), Deadlines(), {}
        for turn in range(3000):
            item = rng.randrange(100)
            if rng.random() < 0.5:
                due.discard(item)
                listed.pop(item, None)
            elif item not in due:
                listed[item] = (rng.randrange(1000), turn)
                due.put(item, listed[item][0])
            if rng.random() < 0.01:
                now_ms = rng.randrange(100)
                wanted = sorted((item for item in listed if listed[item][0] <= now_ms), key=listed.get)
                assert due.pop(now_ms) == wanted, f"seed {seed}"
                listed = {item: time for item, time in listed.items() if item not in wanted}
            assert due.first_ms == min((time_ms for time_ms, _ in listed.values()), default=None), f"seed {seed}"


INTERVAL_MS = 100
OPTIONS = "conflation=100ms,conflation_key=[/sym]"


@pytest.fixture
def desk():
    """A desk without records."""
    return Desk()


def wait(desk):
    """Let an interval pass; take the messages."""
    desk.pass_ms(INTERVAL_MS)
    return desk.take_messages()


def test_a_record_that_moves_leaves_its_group_to_the_others(desk):
    """Record A, which moves from group X to Y, is delivered for Y, and record B for X."""
    desk.subscribe("subscribe", None, OPTIONS)
    desk.put("B", sym="X", px=10)
    desk.put("A", sym="X", px=11)
    desk.put("A", sym="Y", px=11)
    assert wait(desk) == ["publish {id:B,px:10,sym:X}", "publish {id:A,px:11,sym:Y}"]


def test_equal_values_make_one_group(desk):
    """1, 1.0 and true are one group, as in `grouping` and in filters, and the text "1" is another one."""
    desk.subscribe("subscribe", None, OPTIONS)
    for key, value in (("A", 1), ("B", "1"), ("C", True), ("D", 1.0), ("E", [1, 2]), ("F", [1, 3])):
        desk.put(key, sym=value)
    assert [message.split(",")[0] for message in wait(desk)] == [f"publish {{id:{key}" for key in "DBEF"]


def test_a_record_that_is_deleted_leaves_its_group_to_the_others(desk):
    """Record B is delivered for the group of record A, which is deleted in the interval of its update."""
    desk.subscribe("subscribe", None, OPTIONS)
    desk.put("B", sym="X", px=12)
    desk.put("A", sym="X", px=13)
    desk.delete("A")
    assert wait(desk) == ["publish {id:B,px:12,sym:X}"]


def test_a_record_that_leaves_the_filter_leaves_its_group_to_the_others(desk):
    """Record B is delivered for the group of record A, which no longer matches the filter."""
    desk.subscribe("subscribe", "/px > 5", OPTIONS)
    desk.put("B", sym="X", px=12)
    desk.put("A", sym="X", px=13)
    desk.put("A", sym="X", px=1)
    assert wait(desk) == ["publish {id:B,px:12,sym:X}"]


def test_a_record_that_leaves_intervals_later_leaves_its_group_to_the_others(desk):
    """The record that was folded into a delivered one is delivered after the delete of that one."""
    desk.subscribe("subscribe", None, OPTIONS)
    desk.put("B", sym="X", px=10)
    desk.put("A", sym="X", px=11)
    assert wait(desk) == ["publish {id:A,px:11,sym:X}"]
    assert wait(desk) == []
    desk.delete("A")
    assert wait(desk) == ["publish {id:B,px:10,sym:X}"]


@pytest.mark.parametrize("call", ["subscribe", "sow_and_subscribe"])
def test_records_from_before_the_subscription_are_members(desk, call):
    """A record from before the subscription takes the place of a group's newest one, which leaves."""
    desk.put("C", sym="X", px=9)
    desk.put("B", sym="X", px=10)
    desk.put("C", sym="X", px=8)
    desk.put("A", sym="X", px=11)
    desk.subscribe(call, None, OPTIONS)
    desk.take_messages()
    desk.put("A", sym="X", px=12)
    desk.delete("A")
    assert wait(desk) == ["publish {id:C,px:8,sym:X}"]


def test_a_record_that_came_and_left_is_not_delivered(desk):
    """A record that joins and leaves a group within an interval sends no message: the subscriber has the other one."""
    desk.put("B", sym="X", px=10)
    desk.subscribe("sow_and_subscribe", None, OPTIONS)
    desk.take_messages()
    desk.put("A", sym="X", px=11)
    desk.delete("A")
    assert wait(desk) == []
    assert desk.engine.due_ms is None


def test_a_record_that_is_not_the_newest_leaves_without_a_message(desk):
    """Deleting a record that is not the newest of its group changes nothing for the subscriber."""
    desk.subscribe("subscribe", None, OPTIONS)
    desk.put("B", sym="X", px=10)
    desk.put("A", sym="X", px=11)
    wait(desk)
    desk.delete("B")
    assert desk.engine.due_ms is None
    assert wait(desk) == []


def test_a_function_that_moves_by_itself_leaves_no_member_behind(desk, functions):
    """A record that stops matching as the clock moves leaves its group too."""
    functions.Clock.now = 0
    desk.put("B", sym="X", px=10)
    desk.put("A", sym="X", px=10)
    desk.subscribe("subscribe", "/px > TICK()", OPTIONS)
    functions.Clock.now = 20
    desk.put("A", sym="X", px=10)
    functions.Clock.now = 0
    assert wait(desk) == ["publish {id:B,px:10,sym:X}"]


def test_auto_delivers_the_newest_that_is_left(desk):
    """Under `auto` the newest remaining record of a group is delivered."""
    desk.subscribe("subscribe", None, "conflation=auto,conflation_key=/sym")
    desk.put("B", sym="X", px=10)
    desk.put("A", sym="X", px=11)
    desk.delete("A")
    assert desk.take_messages() == ["publish {id:B,px:10,sym:X}"]


def test_members_take_bounded_memory(desk):
    """A record in focus takes less than 400 bytes in the conflation buffer, and nothing once it is gone."""
    subscription = desk.subscribe("subscribe", None, OPTIONS)
    count = 5000
    tracemalloc.start()
    try:
        for n in range(count):
            desk.put(f"key-{n:08}", sym=f"group-{n // 2}")
        wait(desk)
        buffer = subscription._buffer
        assert (len(buffer._group_of), len(buffer._groups)) == (count, count // 2)
        groups = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/group_buffer.py")])
        taken = sum(statistic.size for statistic in groups.statistics("filename"))
    finally:
        tracemalloc.stop()
    assert taken / count < 400, f"{taken / count:.0f} bytes a record"
    for n in range(count):
        desk.delete(f"key-{n:08}")
    wait(desk)
    assert not buffer._group_of
    assert not buffer._groups
    assert not len(buffer)


class Model:
    """A model of the messages that a subscriber of groups receives, from the rules alone and without product code."""

    def __init__(self, least):
        self.least = least
        self.turn = 0
        self.records = {}  # By key: group, turn of its last update, body; those in focus only.
        self.delivered = {}  # By group: the turn of the record that was delivered for it.
        self.waiting = []  # Groups that wait, with the time that each is due, the earliest first.

    def newest(self, group):
        """The turn and body of a group's record with the latest update; None for an empty group."""
        members = [(turn, body) for name, turn, body in self.records.values() if name == group]
        return max(members, key=lambda member: member[0], default=None)

    def start(self):
        """Begin the subscription: existing records count as delivered."""
        for group in {name for name, _, _ in self.records.values()}:
            self.delivered[group] = self.newest(group)[0]

    def update(self, key, body, now_ms):
        """Write a record; a body of None deletes it."""
        self.turn += 1
        before = {name: self.newest(name) for name, _, _ in self.records.values()}
        self.records.pop(key, None)
        if body is not None and body["px"] >= self.least:
            group = ("of", body["sym"]) if "sym" in body else ("alone", key)
            self.records[key] = (group, self.turn, {"id": key, **body})
            before.setdefault(group, None)
        changed = [group for group, was in before.items() if self.newest(group) not in (was, None)]
        if key in self.records:  # The record's own group waits behind the one that it left.
            changed.sort(key=lambda group: group == self.records[key][0])
        for group in changed:
            if group not in [name for name, _ in self.waiting]:
                self.waiting.append((group, now_ms + INTERVAL_MS))

    def due(self, now_ms):
        """The bodies that are due by now, in order."""
        bodies = []
        while self.waiting and self.waiting[0][1] <= now_ms:
            group, _ = self.waiting.pop(0)
            newest = self.newest(group)
            if newest is None:
                self.delivered.pop(group, None)
            elif self.delivered.get(group) != newest[0]:
                self.delivered[group] = newest[0]
                bodies.append(newest[1])
        return bodies


BODIES = st.fixed_dictionaries({"px": st.integers(0, 3)}, optional={"sym": st.sampled_from("XY")})
WRITES = st.tuples(st.sampled_from("ABCD"), st.one_of(BODIES, BODIES, BODIES, st.none()))


@settings(max_examples=250, derandomize=True, database=None, deadline=None)
@given(
    st.sampled_from(["subscribe", "sow_and_subscribe"]),
    st.integers(0, 2),
    st.lists(WRITES, max_size=6),
    st.lists(st.tuples(st.lists(WRITES, max_size=4), st.sampled_from([0, 10, 50, 100, 300])), max_size=8),
)
def test_a_subscriber_of_groups_gets_the_records_of_the_model(call, least, before, turns):
    """Updates, deletes, moves between groups and out of the filter deliver the model's records at the model's times."""
    desk, model = Desk(), Model(least)

    def write(key, body):
        if body is not None:
            desk.put(key, **body)
        elif any(record.key == key.encode() for record in desk.engine._records._view.scan()):
            desk.delete(key)
        model.update(key, body, desk.now_ms)

    for key, body in before:
        write(key, body)
    model.waiting.clear()
    model.start()
    desk.subscribe(call, f"/px >= {least}", OPTIONS)
    desk.take_messages()
    for writes, passes_ms in [*turns, ([], INTERVAL_MS)]:
        for key, body in writes:
            write(key, body)
        desk.pass_ms(passes_ms)
        assert [message.data for message in desk.subscriber.take(1000)] == model.due(desk.now_ms)
    newest = {group: model.newest(group)[0] for group in {name for name, _, _ in model.records.values()}}
    assert {group: turn for group, turn in model.delivered.items() if group in newest} == newest


GROUPED = "projection=[SUM(/qty) AS /qty, COUNT(*) AS /orders],grouping=[/customer]"


def order(offset: int, key: str, value: Any) -> Record:
    """A SOW record."""
    data = None if value is None else json.dumps(value).encode()
    return Record(key.encode(), data, [("version", b"1")], offset, 1_700_000_000_000 + offset)


def spec(options: str, *, delta: bool, filter: str | None = "/state = 'new'") -> SubscriptionSpec:  # noqa: A002
    """An aggregated subscription with a snapshot."""
    topic = Topic("orders", load_codec("json"), KeyFields(("/id",)))
    parsed = parse_options(options, snapshot=True, live=True, delta=delta)
    return SubscriptionSpec(topic, filter, parsed, snapshot=True, live=True, delta=delta)


@pytest.mark.parametrize("seed", range(6))
def test_subscriber_has_the_groups_of_the_records(seed: int) -> None:
    """Snapshot, deltas and oofs of an aggregated subscription give the groups of the matching records at every step."""
    rng, asked = random.Random(seed), spec(f"{GROUPED},oof", delta=True)
    engine = Engine(Topic("orders", load_codec("json"), KeyFields(("/id",))), MemoryRecords())
    records: dict[str, Any] = {}
    held: dict[str, Any] = {}
    offset, desk = 0, engine.connect()
    for step in range(60):
        if step == 20:
            desk.subscribe(asked)
        key = f"k{rng.randrange(8)}"
        value = {"id": key, "customer": rng.choice(("a", "b", None)), "qty": rng.choice((0.1, 0.2, 5)),
                 "state": rng.choice(("new", "new", "paid"))}  # fmt: skip
        records[key] = None if rng.random() < 0.2 else value
        engine.take(0, [order(offset, key, records[key])], step)
        offset += 1
        if step < 20:
            continue
        for message in desk.take(1000):
            if message.command == "oof":
                del held[message.sow_key or ""]
            elif message.data is not None and message.command in {"sow", "publish"}:
                before = held.get(message.sow_key or "", {}) if message.delta else {}
                held[message.sow_key or ""] = {**before, **message.data}
        assert held == expected(records), f"step {step}"


def expected(records: dict[str, Any]) -> dict[str, Any]:
    """The groups of the matching records."""
    groups: dict[str, list[Any]] = {}
    for value in records.values():
        if value is not None and value["state"] == "new":
            groups.setdefault(value["customer"] or "", []).append(value)
    return {
        key: {
            "customer": key or None,
            "qty": float(total) if (total := sum(Decimal(str(each["qty"])) for each in members)) % 1 else int(total),
            "orders": len(members),
        }
        for key, members in groups.items()
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("grouping=[/customer]", "'grouping' needs 'projection'"),
        ("projection=[SUM(/qty)],grouping=[/customer]", "has no name; write SUM"),
        ("projection=[/px AS /px],grouping=[/customer]", "/px is neither grouped nor aggregated"),
        ("projection=[SUM(/qty) AS /a, COUNT(*) AS /a/b]", "/a/b lies inside /a"),
        ("projection=[COUNT(*) AS /customer/n],grouping=[/customer]", "/customer/n lies inside /customer"),
        ("projection=[COUNT(*) AS /n],grouping=[/a/b,/a]", "/a/b lies inside /a"),
        ("projection=[SUM(/qty) AS /a, COUNT(*) AS /a]", "two fields have the name /a"),
        (f"projection=[COUNT(*) AS {'/a' * 101}]", "has 101 names, a field at most 100"),
        (f"projection=[COUNT(*) AS /n],grouping=[{'/a' * 101}]", "has 101 names, a field at most 100"),
        ("projection=[COUNT(*) AS /n],grouping=[/legs[0]]", "leads to one element of an array"),
        ("projection=[COUNT(*) AS /legs[0]]", "leads to one element of an array"),
    ],
)
def test_wrong_projection_is_refused(options: str, message: str) -> None:
    """A projection that cannot be computed is refused with the remedy."""
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        spec(options, delta=False)


@pytest.mark.parametrize("options", ["COUNT(*) AS /n],grouping=[/a]", "SUM(/a) AS /n]", "COUNT(*) + MAX(/a/b) AS /n]"])
def test_projection_of_records_without_fields_is_refused(options: str) -> None:
    """A group of binary records by a field, or a field's figure, is refused; they can be counted."""
    blobs, form = Topic("blobs", load_codec("binary"), KeyFields(())), {"snapshot": True, "live": True, "delta": False}
    with pytest.raises(ConfigurationError, match="the records of blobs have no fields"):
        SubscriptionSpec(blobs, None, parse_options(f"projection=[{options}", **form), **form)
    desk = Desk(blobs)
    counted = parse_options("projection=[COUNT(*) AS /n, MAX(SOW_KEY()) AS /key]", **form)
    desk.subscriber.subscribe(SubscriptionSpec(blobs, None, counted, **form))
    desk.take(desk.record("k", b"one"))
    assert desk.take_messages()[-1] == "publish {key:k,n:1}"


def test_paths_of_groups_are_written_as_in_filters() -> None:
    """A quoted name in `grouping` and behind `AS` is that member; a name that is no path of a filter is a pointer."""
    engine = Engine(Topic("orders", load_codec("json"), KeyFields(("/id",))), MemoryRecords())
    engine.load(0, [order(at, f"k{at}", {"a b": at % 2, "c/d": 1, "qty": 5}) for at in range(3)])
    desk = engine.connect()
    fields = """SUM(/qty) AS /"s x",COUNT(*) AS /n~1m,COUNT(/'c/d') AS /'c/d'"""
    desk.subscribe(spec(f"projection=[{fields}],grouping=[/'a b']", delta=False, filter=None))
    assert [message.data for message in desk.take(9) if message.command == "sow"] == [
        {"a b": 0, "s x": 10, "n/m": 2, "c/d": 2},
        {"a b": 1, "s x": 5, "n/m": 1, "c/d": 1},
    ]


@pytest.mark.parametrize("values", [(9, 1), ("new", 5), (True, "new")])
@pytest.mark.parametrize("loaded", range(3))
def test_first_and_last_do_not_depend_on_the_beginning(values: tuple[Any, Any], loaded: int) -> None:
    """Records of two partitions with one time and one offset have an order, whether they were there or came later."""
    engine = Engine(Topic("orders", load_codec("json"), KeyFields(("/id",))), MemoryRecords())
    records = [order(7, f"k{at}", {"w": value}) for at, value in enumerate(values)]
    desk = engine.connect()
    for partition, record in enumerate(records[:loaded]):
        engine.load(partition, [record])
    asked = spec("projection=[FIRST(/w) AS /first, LAST(/w) AS /last]", delta=False, filter=None)
    desk.subscribe(asked)
    for partition, record in enumerate(records[loaded:], loaded):
        engine.take(partition, [record], 0)
    data = [message.data for message in desk.take(9) if message.data is not None]
    assert data[-1] == dict(zip(("first", "last"), values, strict=True))


@pytest.mark.parametrize("call", ["subscribe", "delta_subscribe"])
def test_a_group_that_was_never_received_goes_out_of_focus_silently(call):
    """Without a snapshot, the end of a group of before makes no message; versions grow over a group's end."""
    desk = Desk()
    desk.put(1, g="a")
    desk.subscribe(call, None, "grouping=[/g],projection=[COUNT(*) AS /n],oof")
    desk.delete(1)
    assert desk.subscriber.take(9) == []
    desk.put(1, g="a")
    desk.delete(1)
    desk.put(1, g="a")
    messages = desk.subscriber.take(9)
    assert [message.command for message in messages] == ["publish", "oof", "publish"]
    versions = [message.version for message in messages]
    assert sorted(set(versions)) == versions
