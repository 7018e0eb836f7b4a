"""Records whose time is over are in no snapshot, also while no worker runs that would expire them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, parse_options
from tests.subscriptions.desk import CALLS, ORDERS, short

NOW_MS = 1_700_000_000_000
OVER = NOW_MS
LATER = NOW_MS + 1


class Wall:
    """A topic read by an engine whose wall clock stands still until it is set."""

    def __init__(self):
        self.now_ms = NOW_MS
        self.engine = Engine(ORDERS, MemoryRecords(), lambda: self.now_ms)
        self.subscriber = self.engine.connect()
        self.offset = 0

    def record(self, key, expires_at_ms=0, kind=None, **fields):
        """A record as it is on the SOW topic; a kind of its own makes it a tombstone."""
        self.offset += 1
        headers = [("version", b"%d" % self.offset)]
        if expires_at_ms:
            headers.append(("expires_at", b"%d" % expires_at_ms))
        if kind:
            headers.append(("kind", kind))
        value = None if kind else json.dumps({"id": key, **fields}).encode()
        return Record(b"%d" % key, value, headers, self.offset, NOW_MS)

    def put(self, *arguments, **fields):
        """A worker wrote it."""
        self.engine.take(0, [self.record(*arguments, **fields)], 0)

    def subscribe(self, call, filter=None, options=None, **how):  # noqa: A002
        """Begin a subscription; the messages of its snapshot."""
        form = CALLS[call]
        request = SubscriptionSpec(ORDERS, filter, parse_options(options, **form), **form)
        self.subscriber.subscribe(request, **how)
        return self.heard()

    def heard(self):
        """The messages that wait, in short, without the marks of snapshots."""
        texts = [short(message) for message in self.subscriber.take(10**6)]
        return [text for text in texts if not text.startswith("group_")]


@pytest.fixture
def wall():
    """Four orders, of which the first and the last are over."""
    wall = Wall()
    wall.engine.load(
        0,
        [
            wall.record(1, OVER, px=1),
            wall.record(2, LATER, px=2),
            wall.record(3, 0, px=3),
            wall.record(4, NOW_MS - 10**9, px=4),
        ],
    )
    return wall


@pytest.mark.parametrize("call", ["sow", "sow_and_subscribe", "sow_and_delta_subscribe"])
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ("", [2, 3]),
        ("order_by=/px DESC", [3, 2]),
        ("top_n=1,order_by=/px", [2]),
        ("top_n=1,skip_n=1,order_by=/px", [3]),
    ],
)
def test_a_snapshot_leaves_out_what_is_over(wall, call, options, keys):
    """Also ordered, and a window takes the records that are left."""
    assert wall.subscribe(call, None, options) == [f"sow {{id:{key},px:{key}}}" for key in keys]


def test_what_is_looked_up_is_left_out_too(wall):
    """An index and the record's own key find no more than a scan."""
    for _ in range(3):
        assert wall.subscribe("sow", "/px = 1 OR /px = 2") == ["sow {id:2,px:2}"]


def test_the_clock_is_that_of_the_snapshot(wall):
    """A subscription that begins later leaves out records that had expired by then, one that began before keeps it."""
    assert wall.subscribe("sow_and_subscribe", None, "oof") == ["sow {id:2,px:2}", "sow {id:3,px:3}"]
    wall.now_ms = LATER
    assert wall.heard() == []
    assert wall.subscribe("sow") == ["sow {id:3,px:3} @2"]
    wall.put(2, 0, b"expire")
    assert wall.heard() == ["oof expired {id:2,px:2} @1"]


@pytest.mark.parametrize("call", ["sow_and_subscribe", "sow_and_delta_subscribe"])
@pytest.mark.parametrize("options", ["oof", "oof,conflation=100ms", "oof,top_n=9", "oof,conflation=auto"])
@pytest.mark.parametrize("kind", [b"expire", b"delete"])
def test_no_oof_of_a_record_that_was_left_out(wall, call, options, kind):
    """When a worker expires it later, the subscriber has never received it."""
    wall.subscribe(call, None, options)
    wall.put(1, 0, kind)
    wall.engine.punctuate(100)
    assert wall.heard() == []
    wall.put(2, 0, kind)
    wall.engine.punctuate(200)
    reason = "expired" if kind == b"expire" else "deleted"
    assert wall.heard() == [f"oof {reason} {{id:2,px:2}}"]


def test_nor_when_it_leaves_the_filter(wall):
    """An update that takes it out of focus is nothing to a subscriber who never had it."""
    wall.subscribe("sow_and_subscribe", "/px > 0", "oof")
    wall.put(1, 0, px=0)
    assert wall.heard() == []


@pytest.mark.parametrize("options", ["", "conflation=100ms", "top_n=9"])
def test_a_record_that_was_left_out_comes_whole(wall, options):
    """An update that restarts its time brings it back, whole; from then on it is like any other."""
    wall.subscribe("sow_and_delta_subscribe", None, f"oof,{options}")
    wall.put(1, LATER, px=1, n=1)
    wall.engine.punctuate(100)
    assert wall.heard() == ["publish {id:1,n:1,px:1}"]
    wall.put(1, LATER, px=1, n=2)
    wall.engine.punctuate(200)
    assert wall.heard() == ["delta {id:1,n:2}"]
    wall.put(1, 0, b"expire")
    wall.engine.punctuate(300)
    assert wall.heard() == ["oof expired {id:1,n:2,px:1}"]


def test_an_update_whose_time_is_over_by_our_clock_is_delivered(wall):
    """A worker's clock may be behind ours: its updates after the snapshot are delivered like any other."""
    wall.subscribe("sow_and_delta_subscribe", None, "oof")
    wall.put(1, OVER - 5, px=1, n=1)
    wall.put(1, OVER - 4, px=1, n=2)
    wall.put(1, 0, b"expire")
    assert wall.heard() == ["publish {id:1,n:1,px:1}", "delta {id:1,n:2}", "oof expired {id:1,n:2,px:1}"]


def test_a_window_without_a_snapshot_has_no_place_for_what_is_over(wall):
    """Its places are for records that are there: an update of what was left out pushes another one out."""
    wall.subscribe("delta_subscribe", None, "top_n=2,order_by=/px,oof")
    wall.put(3, 0, px=3, n=1)
    wall.put(1, LATER, px=1)
    assert wall.heard() == ["delta {id:3,n:1}", "oof match {id:3,n:1,px:3}", "publish {id:1,px:1}"]


def test_a_group_has_no_member_that_is_over(wall):
    """With `conflation_key` a record whose time was over does not take the place of one that leaves."""
    wall.subscribe("subscribe", None, "conflation=100ms,conflation_key=/sym")
    wall.engine.take(0, [wall.record(5, OVER, sym="X")], 0)
    wall.engine.punctuate(100)
    assert wall.heard() == ["publish {id:5,sym:X}"], "an update is delivered"
    wall.subscriber.close()
    wall.subscribe("subscribe", None, "conflation=100ms,conflation_key=/sym")
    wall.put(6, 0, sym="X")
    wall.put(6, 0, b"delete")
    wall.engine.punctuate(300)
    assert wall.heard() == []


def test_a_state_that_was_kept_is_gone_on_with(wall):
    """A view that was kept begins as it was left: such a record leaves it when a worker expires it, with an oof."""
    assert len(wall.subscribe("sow_and_subscribe", None, "oof", resumes=True)) == 4
    wall.put(1, 0, b"expire")
    assert wall.heard() == ["oof expired {id:1,px:1}"]


TIMES = st.sampled_from([0, OVER, OVER - 5, LATER, LATER + 5])
WRITES = st.tuples(st.integers(1, 4), st.one_of(TIMES, TIMES, TIMES, st.sampled_from([b"expire", b"delete"])))


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.lists(WRITES, max_size=6), st.lists(st.one_of(WRITES, st.sampled_from([3, 10])), max_size=10))
def test_a_subscriber_has_what_a_model_says(before, turns):
    """In any history a snapshot has what is there and not over, and oofs are of just the records that it has."""
    wall = Wall()
    records = {}

    def write(key, what):
        if isinstance(what, bytes):
            wall.put(key, 0, what)
            records.pop(key, None)
        else:
            wall.put(key, what, n=wall.offset)
            records[key] = what

    for key, what in before:
        write(key, what)
    subscribers = []
    for turn in [0, *turns]:
        if isinstance(turn, int):
            wall.now_ms += turn
            connection = wall.engine.connect()
            form = CALLS["sow_and_delta_subscribe"]
            connection.subscribe(SubscriptionSpec(ORDERS, None, parse_options("oof", **form), **form))
            subscribers.append((connection, {key for key, time in records.items() if not 0 < time <= wall.now_ms}))
        else:
            key, what = turn
            for _, has in subscribers:
                (has.discard if isinstance(what, bytes) else has.add)(key)
            write(key, what)
        for connection, has in subscribers:
            held = getattr(connection, "held", None)
            held = connection.held = set() if held is None else held
            for message in connection.take(99):
                if message.command == "oof":
                    held.remove(message.sow_key)
                elif message.sow_key is not None:
                    assert message.delta == (message.sow_key in held)
                    held.add(message.sow_key)
            assert held == {str(key) for key in has}
