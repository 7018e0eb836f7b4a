"""Expired records are in no snapshot, even if no worker is running to expire them."""

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
    """A topic read by an engine whose wall clock moves only when it is set."""

    def __init__(self):
        self.now_ms = NOW_MS
        self.engine = Engine(ORDERS, MemoryRecords(), lambda: self.now_ms)
        self.subscriber = self.engine.connect()
        self.offset = 0

    def record(self, key, expires_at_ms=0, kind=None, **fields):
        """A record of the SOW topic; with a kind it is a tombstone."""
        self.offset += 1
        headers = [("version", b"%d" % self.offset)]
        if expires_at_ms:
            headers.append(("expires_at", b"%d" % expires_at_ms))
        if kind:
            headers.append(("kind", kind))
        value = None if kind else json.dumps({"id": key, **fields}).encode()
        return Record(b"%d" % key, value, headers, self.offset, NOW_MS)

    def put(self, *arguments, **fields):
        """Write a record, as a worker does."""
        self.engine.take(0, [self.record(*arguments, **fields)], 0)

    def subscribe(self, call, filter=None, options=None, **how):  # noqa: A002
        """Begin a subscription; return the messages of its snapshot."""
        form = CALLS[call]
        request = SubscriptionSpec(ORDERS, filter, parse_options(options, **form), **form)
        self.subscriber.subscribe(request, **how)
        return self.take_messages()

    def take_messages(self):
        """Take the waiting messages in short form, without the marks of snapshots."""
        texts = [short(message) for message in self.subscriber.take(10**6)]
        return [text for text in texts if not text.startswith("group_")]


@pytest.fixture
def wall():
    """Four orders, of which the first and the last have expired."""
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
def test_a_snapshot_omits_expired_records(wall, call, options, keys):
    """A snapshot omits expired records, also if it is ordered or a window."""
    assert wall.subscribe(call, None, options) == [f"sow {{id:{key},px:{key}}}" for key in keys]


def test_a_look_up_omits_expired_records(wall):
    """A look-up by index or key omits expired records like a scan."""
    for _ in range(3):
        assert wall.subscribe("sow", "/px = 1 OR /px = 2") == ["sow {id:2,px:2}"]


def test_the_clock_is_that_of_the_snapshot(wall):
    """A snapshot uses the clock of its own beginning; earlier ones keep the record until a worker expires it."""
    assert wall.subscribe("sow_and_subscribe", None, "oof") == ["sow {id:2,px:2}", "sow {id:3,px:3}"]
    wall.now_ms = LATER
    assert wall.take_messages() == []
    assert wall.subscribe("sow") == ["sow {id:3,px:3} @2"]
    wall.put(2, 0, b"expire")
    assert wall.take_messages() == ["oof expired {id:2,px:2} @1"]


@pytest.mark.parametrize("call", ["sow_and_subscribe", "sow_and_delta_subscribe"])
@pytest.mark.parametrize("options", ["oof", "oof,conflation=100ms", "oof,top_n=9", "oof,conflation=auto"])
@pytest.mark.parametrize("kind", [b"expire", b"delete"])
def test_a_record_that_was_omitted_sends_no_oof_when_it_expires(wall, call, options, kind):
    """A record that a snapshot omitted sends no `oof` when a worker expires it."""
    wall.subscribe(call, None, options)
    wall.put(1, 0, kind)
    wall.engine.punctuate(100)
    assert wall.take_messages() == []
    wall.put(2, 0, kind)
    wall.engine.punctuate(200)
    reason = "expired" if kind == b"expire" else "deleted"
    assert wall.take_messages() == [f"oof {reason} {{id:2,px:2}}"]


def test_a_record_that_was_omitted_sends_no_oof_when_it_leaves_the_filter(wall):
    """A record that a snapshot omitted sends no `oof` when an update takes it out of focus."""
    wall.subscribe("sow_and_subscribe", "/px > 0", "oof")
    wall.put(1, 0, px=0)
    assert wall.take_messages() == []


@pytest.mark.parametrize("options", ["", "conflation=100ms", "top_n=9"])
def test_a_record_that_was_omitted_is_sent_in_full(wall, options):
    """An update that restarts the time of an omitted record sends it in full, and later ones are deltas."""
    wall.subscribe("sow_and_delta_subscribe", None, f"oof,{options}")
    wall.put(1, LATER, px=1, n=1)
    wall.engine.punctuate(100)
    assert wall.take_messages() == ["publish {id:1,n:1,px:1}"]
    wall.put(1, LATER, px=1, n=2)
    wall.engine.punctuate(200)
    assert wall.take_messages() == ["delta {id:1,n:2}"]
    wall.put(1, 0, b"expire")
    wall.engine.punctuate(300)
    assert wall.take_messages() == ["oof expired {id:1,n:2,px:1}"]


def test_an_update_that_has_expired_by_our_clock_is_delivered(wall):
    """An update that has expired by the reader's clock is delivered, since the worker's clock may be behind."""
    wall.subscribe("sow_and_delta_subscribe", None, "oof")
    wall.put(1, OVER - 5, px=1, n=1)
    wall.put(1, OVER - 4, px=1, n=2)
    wall.put(1, 0, b"expire")
    assert wall.take_messages() == ["publish {id:1,n:1,px:1}", "delta {id:1,n:2}", "oof expired {id:1,n:2,px:1}"]


def test_a_window_without_a_snapshot_has_no_place_for_expired_records(wall):
    """A window without a snapshot has no place for expired records; an update of one pushes another record out."""
    wall.subscribe("delta_subscribe", None, "top_n=2,order_by=/px,oof")
    wall.put(3, 0, px=3, n=1)
    wall.put(1, LATER, px=1)
    assert wall.take_messages() == ["delta {id:3,n:1}", "oof match {id:3,n:1,px:3}", "publish {id:1,px:1}"]


def test_a_group_has_no_expired_member(wall):
    """With `conflation_key` an expired record is not delivered in place of one that leaves its group."""
    wall.subscribe("subscribe", None, "conflation=100ms,conflation_key=/sym")
    wall.engine.take(0, [wall.record(5, OVER, sym="X")], 0)
    wall.engine.punctuate(100)
    assert wall.take_messages() == ["publish {id:5,sym:X}"], "an update is delivered"
    wall.subscriber.close()
    wall.subscribe("subscribe", None, "conflation=100ms,conflation_key=/sym")
    wall.put(6, 0, sym="X")
    wall.put(6, 0, b"delete")
    wall.engine.punctuate(300)
    assert wall.take_messages() == []


def test_a_view_that_was_kept_is_resumed(wall):
    """A view that was kept on disk is resumed as it was: an expired record leaves it with an `oof` from the worker."""
    assert len(wall.subscribe("sow_and_subscribe", None, "oof", resumes=True)) == 4
    wall.put(1, 0, b"expire")
    assert wall.take_messages() == ["oof expired {id:1,px:1}"]


TIMES = st.sampled_from([0, OVER, OVER - 5, LATER, LATER + 5])
WRITES = st.tuples(st.integers(1, 4), st.one_of(TIMES, TIMES, TIMES, st.sampled_from([b"expire", b"delete"])))


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(st.lists(WRITES, max_size=6), st.lists(st.one_of(WRITES, st.sampled_from([3, 10])), max_size=10))
def test_a_subscriber_has_the_records_of_the_model(before, turns):
    """In any history a snapshot has the live records, and each `oof` is of a record that the subscriber has."""
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
