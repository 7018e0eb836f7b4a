"""The calls and the options of subscribe.md, each as a subscriber sees it."""

import pytest

from processor.codec.binary import BinaryCodec
from processor.codec.contract import CodecOptions
from processor.errors import ConfigurationError, FilterError
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, NoRecords, Options, SubscriptionSpec, Topic
from tests.subscriptions.desk import CALLS, ORDERS, Desk


@pytest.fixture
def desk():
    """Two orders are there; one has a quantity above 10."""
    desk = Desk()
    desk.put(1, qty=20, note="x")
    desk.put(2, qty=5, note="y")
    return desk


def test_sow_tells_the_state_and_nothing_after_it(desk):
    """A group of the records that match, and then the subscription has ended."""
    desk.subscribe("sow", "/qty > 10")
    desk.put(1, qty=21)
    assert desk.heard() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end"]
    desk.put(1, qty=22)
    assert not desk.subscriber.has_waiting
    assert desk.heard() == []


def test_subscribe_tells_whole_records_from_now_on(desk):
    """Each update of a record that matches, whole; no earlier record."""
    desk.subscribe("subscribe", "/qty > 10")
    desk.put(1, qty=21, note="x")
    desk.put(2, qty=6)
    desk.put(3, qty=30)
    assert desk.heard() == ["publish {id:1,note:x,qty:21}", "publish {id:3,qty:30}"]


def test_sow_and_subscribe_has_no_gap_and_no_overlap(desk):
    """Updates while the snapshot waits come behind it, and is not in it."""
    desk.subscribe("sow_and_subscribe", "/qty > 10")
    desk.put(1, qty=21)
    desk.put(3, qty=30)
    assert desk.heard() == [
        "group_begin",
        "sow {id:1,note:x,qty:20}",
        "group_end",
        "publish {id:1,qty:21}",
        "publish {id:3,qty:30}",
    ]


def test_delta_subscribe_tells_key_fields_and_what_changed(desk):
    """Also of a record that was there before, which its subscriber is supposed to have; a new one comes whole."""
    desk.subscribe("delta_subscribe", "/qty > 10")
    desk.put(1, qty=21)
    desk.put(3, qty=30)
    assert desk.heard() == ["delta {id:1,qty:21} -/note", "publish {id:3,qty:30}"]


def test_sow_and_delta_subscribe_tells_whole_records_then_deltas(desk):
    """The snapshot is whole."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10")
    desk.put(1, qty=21, note="x")
    assert desk.heard() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end", "delta {id:1,qty:21}"]


@pytest.mark.parametrize("call", CALLS)
def test_a_message_says_key_version_and_topic(desk, call):
    """Whatever the call; the correlation id is the publisher's, and the time comes only when it was asked for."""
    desk.subscribe(call, "/id = 1", "timestamp")
    desk.take(desk.record(1, b'{"id":1,"qty":1}', correlation_id=b"c\xff"))
    message = next(message for message in desk.subscriber.take(99) if message.sow_key == "1")
    is_old = message.command == "sow"
    assert (message.topic, message.version) == ("orders", 1 if is_old else 2)
    assert message.correlation_id == (None if is_old else "c\\xff")
    assert message.timestamp == f"2023-11-14T22:13:20.00{1 if is_old else desk.written}Z"


@pytest.mark.parametrize("version", [b"", b"x", b"9" * 5000, None])
def test_a_version_that_no_worker_writes_is_none(desk, version):
    """It ends nothing."""
    desk.subscribe("subscribe")
    desk.take(desk.record(1, b"{}")._replace(headers=[("version", version)]))
    [message] = desk.subscriber.take(9)
    assert message.version is None
    assert message.timestamp is None


def test_no_sowkey_leaves_the_key_out(desk):
    """Of messages; the key fields are in the data all the same."""
    desk.subscribe("delta_subscribe", "/id = 1", "no_sowkey")
    desk.put(1, qty=1, note="x")
    [message] = desk.subscriber.take(9)
    assert message.sow_key is None
    assert message.data == {"id": 1, "qty": 1}


def test_send_keys_changes_nothing(desk):
    """Key fields come anyway."""
    desk.subscribe("delta_subscribe", "/id = 1", "send_keys")
    desk.put(1, qty=1, note="x")
    assert desk.heard() == ["delta {id:1,qty:1}"]


def test_an_update_that_changed_nothing_is_told(desk):
    """With its key fields alone, unless `no_empties` forbids it."""
    desk.subscribe("delta_subscribe", "/id = 1")
    desk.put(1, qty=20, note="x")
    assert desk.heard() == ["delta {id:1}"]


def test_no_empties_tells_nothing_where_nothing_changed(desk):
    """A removed field is a change."""
    desk.subscribe("sow_and_delta_subscribe", "/id = 1", "no_empties")
    desk.heard()
    desk.put(1, qty=20, note="x")
    assert not desk.subscriber.has_waiting
    desk.put(1, qty=20)
    assert desk.heard() == ["delta {id:1} -/note"]


def test_select_tells_what_is_selected(desk):
    """Of the snapshot, of deltas and of whole records; key fields always."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "select=[-/,+/qty]")
    desk.put(1, qty=21, note="z")
    desk.put(1, qty=21, note="a")
    desk.put(3, qty=30, note="b")
    assert desk.heard()[1:] == [
        "sow {id:1,qty:20}",
        "group_end",
        "delta {id:1,qty:21}",
        "delta {id:1}",
        "publish {id:3,qty:30}",
    ]


def test_select_is_applied_after_the_filter(desk):
    """A filter may use fields that are not selected; what it says out of focus is selected too."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "select=[-/,+/note],oof")
    desk.put(1, qty=1, note="z")
    assert desk.heard()[1:] == ["sow {id:1,note:x}", "group_end", "oof match {id:1,note:z}"]


def test_no_empties_with_select_asks_whether_a_selected_field_changed(desk):
    """Another one's change is none."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "select=[-/note],no_empties")
    desk.heard()
    desk.put(1, qty=20, note="z")
    assert desk.heard() == []
    desk.put(1, qty=21, note="z")
    assert desk.heard() == ["delta {id:1,qty:21}"]


def test_order_by_orders_the_snapshot(desk):
    """Highest first; updates come as they come."""
    desk.put(3, qty=30)
    desk.subscribe("sow_and_subscribe", None, "order_by=/qty DESC")
    desk.put(2, qty=99)
    assert [line.split(",")[0] for line in desk.heard()] == [
        "group_begin",
        "sow {id:3",
        "sow {id:1",
        "sow {id:2",
        "group_end",
        "publish {id:2",
    ]


def test_a_message_type_without_deltas_tells_whole_records():
    """To delta subscriptions too: it has no parts."""
    topic = Topic("blobs", BinaryCodec(CodecOptions()), KeyFields(()))
    desk = Desk(topic)
    desk.take(desk.record("k", b"one"))
    desk.subscribe("sow_and_delta_subscribe", None, "no_empties,oof")
    desk.take(desk.record("k", b"two"))
    desk.delete("k")
    told = desk.subscriber.take(9)
    assert [(message.command, message.delta, message.data) for message in told] == [
        ("group_begin", False, None),
        ("sow", False, b"one"),
        ("group_end", False, None),
        ("publish", False, b"two"),
        ("oof", False, b"two"),
    ]


def test_whole_records_need_no_view():
    """Without it each update is told as it comes; a delete is nothing."""
    desk = Desk(view=NoRecords())
    assert not SubscriptionSpec(ORDERS, "/qty > 1", Options(), snapshot=False, live=True, delta=False).needs_view
    desk.subscribe("subscribe", "/qty > 1")
    desk.put(1, qty=2)
    desk.put(1, qty=3)
    desk.put(1, qty=1)
    desk.delete(1)
    assert desk.heard() == ["publish {id:1,qty:2}", "publish {id:1,qty:3}"]


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("sow", ""),
        ("sow_and_subscribe", ""),
        ("delta_subscribe", ""),
        ("subscribe", "oof"),
        ("subscribe", "top_n=1"),
        ("subscribe", "conflation=1s,conflation_key=/sym"),
    ],
)
def test_what_was_before_matters_to_some(call, options):
    """They say that they need a view."""
    from processor.subscriptions import parse_options

    how = CALLS[call]
    assert SubscriptionSpec(ORDERS, None, parse_options(options, **how), **how).needs_view


def test_records_of_the_past_are_told_to_nobody():
    """They are what the first snapshot is made of, and what the first delta is of."""
    desk = Desk()
    desk.subscribe("delta_subscribe", None, "oof")
    desk.engine.load(1, [desk.record(1, b'{"id":1,"a":1}')])
    assert not desk.subscriber.has_waiting
    desk.put(1, a=2)
    assert desk.heard() == ["delta {a:2,id:1}"]


def test_a_filter_that_cannot_be_read_is_refused_at_once():
    """With the place."""
    with pytest.raises(FilterError, match="line 1, column 8"):
        SubscriptionSpec(ORDERS, "/qty > > 1", Options(), snapshot=True, live=True, delta=False)


@pytest.mark.parametrize("options", [Options(select="x"), Options(order_by="/a ASC DESC")])
def test_a_list_that_cannot_be_read_is_refused_at_once(options):
    """So are the others."""
    with pytest.raises(ConfigurationError):
        SubscriptionSpec(ORDERS, None, options, snapshot=True, live=True, delta=False)


def test_a_record_without_a_key_is_nobodys(desk):
    """It is not told, and not in a snapshot."""
    desk.subscribe("subscribe")
    desk.engine.take(0, [Record(None, b"{}", None, 900, 0)], 0)
    desk.subscribe("sow", sub_id="s")
    assert desk.heard() == [
        "group_begin @s",
        "sow {id:1,note:x,qty:20} @s",
        "sow {id:2,note:y,qty:5} @s",
        "group_end @s",
    ]


def test_updates_of_a_batch_are_told_one_by_one():
    """Each against the one before it, though all are in the view by then."""
    desk = Desk(partitions=1)
    desk.subscribe("delta_subscribe", "/a < 3", "oof")
    desk.take(*(desk.record(1, b'{"id":1,"a":%d}' % a) for a in (1, 2, 3)), desk.record(1, None))
    assert desk.heard() == ["publish {a:1,id:1}", "delta {a:2,id:1}", "oof match {a:3,id:1}"]


def test_an_engine_without_updates_waits_for_nothing():
    """No time is due."""
    engine = Engine(ORDERS, NoRecords())
    engine.take(0, [], 0)
    engine.punctuate(0)
    assert engine.due_ms is None
