"""Each call and option of subscribe.md has its documented effect on a subscriber."""

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
    """A desk with two orders; one has a quantity above 10."""
    desk = Desk()
    desk.put(1, qty=20, note="x")
    desk.put(2, qty=5, note="y")
    return desk


def test_sow_delivers_the_state_and_nothing_after_it(desk):
    """`sow` delivers a group of the matching records, and then the subscription ends."""
    desk.subscribe("sow", "/qty > 10")
    desk.put(1, qty=21)
    assert desk.take_messages() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end"]
    desk.put(1, qty=22)
    assert not desk.subscriber.has_waiting
    assert desk.take_messages() == []


def test_subscribe_delivers_full_records_from_now_on(desk):
    """`subscribe` delivers each later update of a matching record in full, and no earlier record."""
    desk.subscribe("subscribe", "/qty > 10")
    desk.put(1, qty=21, note="x")
    desk.put(2, qty=6)
    desk.put(3, qty=30)
    assert desk.take_messages() == ["publish {id:1,note:x,qty:21}", "publish {id:3,qty:30}"]


def test_sow_and_subscribe_has_no_gap_and_no_overlap(desk):
    """`sow_and_subscribe` has no gap and no overlap: updates while the snapshot waits come after it."""
    desk.subscribe("sow_and_subscribe", "/qty > 10")
    desk.put(1, qty=21)
    desk.put(3, qty=30)
    assert desk.take_messages() == [
        "group_begin",
        "sow {id:1,note:x,qty:20}",
        "group_end",
        "publish {id:1,qty:21}",
        "publish {id:3,qty:30}",
    ]


def test_delta_subscribe_delivers_key_fields_and_changes(desk):
    """`delta_subscribe` delivers key fields and changes, also of records from before; a new record comes in full."""
    desk.subscribe("delta_subscribe", "/qty > 10")
    desk.put(1, qty=21)
    desk.put(3, qty=30)
    assert desk.take_messages() == ["delta {id:1,qty:21} -/note", "publish {id:3,qty:30}"]


def test_sow_and_delta_subscribe_delivers_full_records_then_deltas(desk):
    """`sow_and_delta_subscribe` delivers a snapshot of full records and then deltas."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10")
    desk.put(1, qty=21, note="x")
    assert desk.take_messages() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end", "delta {id:1,qty:21}"]


@pytest.mark.parametrize("call", CALLS)
def test_a_message_has_key_version_and_topic(desk, call):
    """A message has key, version, topic and the publisher's correlation id in every call, and the time if requested."""
    desk.subscribe(call, "/id = 1", "timestamp")
    desk.take(desk.record(1, b'{"id":1,"qty":1}', correlation_id=b"c\xff"))
    message = next(message for message in desk.subscriber.take(99) if message.sow_key == "1")
    is_old = message.command == "sow"
    assert (message.topic, message.version) == ("orders", 1 if is_old else 2)
    assert message.correlation_id == (None if is_old else "c\\xff")
    assert message.timestamp == f"2023-11-14T22:13:20.00{1 if is_old else desk.written}Z"


@pytest.mark.parametrize("version", [b"", b"x", b"9" * 5000, None])
def test_a_version_that_no_worker_writes_is_none(desk, version):
    """A version header that no worker writes gives a message without a version."""
    desk.subscribe("subscribe")
    desk.take(desk.record(1, b"{}")._replace(headers=[("version", version)]))
    [message] = desk.subscriber.take(9)
    assert message.version is None
    assert message.timestamp is None


def test_no_sowkey_leaves_the_key_out(desk):
    """`no_sowkey` removes the key from messages; the data still has the key fields."""
    desk.subscribe("delta_subscribe", "/id = 1", "no_sowkey")
    desk.put(1, qty=1, note="x")
    [message] = desk.subscriber.take(9)
    assert message.sow_key is None
    assert message.data == {"id": 1, "qty": 1}


def test_send_keys_changes_nothing(desk):
    """`send_keys` changes nothing, since key fields are always sent."""
    desk.subscribe("delta_subscribe", "/id = 1", "send_keys")
    desk.put(1, qty=1, note="x")
    assert desk.take_messages() == ["delta {id:1,qty:1}"]


def test_an_update_without_a_change_is_sent(desk):
    """An update without a change is sent with its key fields alone."""
    desk.subscribe("delta_subscribe", "/id = 1")
    desk.put(1, qty=20, note="x")
    assert desk.take_messages() == ["delta {id:1}"]


def test_no_empties_suppresses_updates_without_a_change(desk):
    """`no_empties` suppresses updates without a change; a removed field is a change."""
    desk.subscribe("sow_and_delta_subscribe", "/id = 1", "no_empties")
    desk.take_messages()
    desk.put(1, qty=20, note="x")
    assert not desk.subscriber.has_waiting
    desk.put(1, qty=20)
    assert desk.take_messages() == ["delta {id:1} -/note"]


def test_select_sends_the_selected_fields(desk):
    """`select` applies to the snapshot, to deltas and to full records; key fields are always sent."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "select=[-/,+/qty]")
    desk.put(1, qty=21, note="z")
    desk.put(1, qty=21, note="a")
    desk.put(3, qty=30, note="b")
    assert desk.take_messages()[1:] == [
        "sow {id:1,qty:20}",
        "group_end",
        "delta {id:1,qty:21}",
        "delta {id:1}",
        "publish {id:3,qty:30}",
    ]


def test_select_is_applied_after_the_filter(desk):
    """`select` is applied after the filter, which may use other fields, and to `oof` messages."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "select=[-/,+/note],oof")
    desk.put(1, qty=1, note="z")
    assert desk.take_messages()[1:] == ["sow {id:1,note:x}", "group_end", "oof match {id:1,note:z}"]


def test_no_empties_with_select_suppresses_updates_without_a_selected_change(desk):
    """`no_empties` with `select` suppresses updates without a selected change."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "select=[-/note],no_empties")
    desk.take_messages()
    desk.put(1, qty=20, note="z")
    assert desk.take_messages() == []
    desk.put(1, qty=21, note="z")
    assert desk.take_messages() == ["delta {id:1,qty:21}"]


def test_order_by_orders_the_snapshot(desk):
    """`order_by` orders the snapshot; updates come in their own order."""
    desk.put(3, qty=30)
    desk.subscribe("sow_and_subscribe", None, "order_by=/qty DESC")
    desk.put(2, qty=99)
    assert [line.split(",")[0] for line in desk.take_messages()] == [
        "group_begin",
        "sow {id:3",
        "sow {id:1",
        "sow {id:2",
        "group_end",
        "publish {id:2",
    ]


def test_a_message_type_without_deltas_delivers_full_records():
    """A message type without deltas delivers full records to delta subscriptions too."""
    topic = Topic("blobs", BinaryCodec(CodecOptions()), KeyFields(()))
    desk = Desk(topic)
    desk.take(desk.record("k", b"one"))
    desk.subscribe("sow_and_delta_subscribe", None, "no_empties,oof")
    desk.take(desk.record("k", b"two"))
    desk.delete("k")
    messages = desk.subscriber.take(9)
    assert [(message.command, message.delta, message.data) for message in messages] == [
        ("group_begin", False, None),
        ("sow", False, b"one"),
        ("group_end", False, None),
        ("publish", False, b"two"),
        ("oof", False, b"two"),
    ]


def test_full_records_need_no_view():
    """A subscription to full records needs no view; without one a delete sends no message."""
    desk = Desk(view=NoRecords())
    assert not SubscriptionSpec(ORDERS, "/qty > 1", Options(), snapshot=False, live=True, delta=False).needs_view
    desk.subscribe("subscribe", "/qty > 1")
    desk.put(1, qty=2)
    desk.put(1, qty=3)
    desk.put(1, qty=1)
    desk.delete(1)
    assert desk.take_messages() == ["publish {id:1,qty:2}", "publish {id:1,qty:3}"]


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
def test_subscriptions_that_use_earlier_records_need_a_view(call, options):
    """Subscriptions that depend on earlier records need a view."""
    from processor.subscriptions import parse_options

    how = CALLS[call]
    assert SubscriptionSpec(ORDERS, None, parse_options(options, **how), **how).needs_view


def test_records_of_the_past_send_no_message():
    """Loaded records of the past send no message; they are in the first snapshot and the base of the first delta."""
    desk = Desk()
    desk.subscribe("delta_subscribe", None, "oof")
    desk.engine.load(1, [desk.record(1, b'{"id":1,"a":1}')])
    assert not desk.subscriber.has_waiting
    desk.put(1, a=2)
    assert desk.take_messages() == ["delta {a:2,id:1}"]


def test_a_filter_that_cannot_be_read_is_refused_at_once():
    """An invalid filter is refused at once with its place."""
    with pytest.raises(FilterError, match="line 1, column 8"):
        SubscriptionSpec(ORDERS, "/qty > > 1", Options(), snapshot=True, live=True, delta=False)


@pytest.mark.parametrize("options", [Options(select="x"), Options(order_by="/a ASC DESC")])
def test_a_list_that_cannot_be_read_is_refused_at_once(options):
    """An invalid select or order list is refused at once."""
    with pytest.raises(ConfigurationError):
        SubscriptionSpec(ORDERS, None, options, snapshot=True, live=True, delta=False)


def test_a_record_without_a_key_is_not_delivered(desk):
    """A record without a key is neither delivered nor in a snapshot."""
    desk.subscribe("subscribe")
    desk.engine.take(0, [Record(None, b"{}", None, 900, 0)], 0)
    desk.subscribe("sow", sub_id="s")
    assert desk.take_messages() == [
        "group_begin @s",
        "sow {id:1,note:x,qty:20} @s",
        "sow {id:2,note:y,qty:5} @s",
        "group_end @s",
    ]


def test_updates_of_a_batch_are_sent_one_by_one():
    """Updates of a batch are sent one by one, each compared with the previous one, though the view has all of them."""
    desk = Desk(partitions=1)
    desk.subscribe("delta_subscribe", "/a < 3", "oof")
    desk.take(*(desk.record(1, b'{"id":1,"a":%d}' % a) for a in (1, 2, 3)), desk.record(1, None))
    assert desk.take_messages() == ["publish {a:1,id:1}", "delta {a:2,id:1}", "oof match {a:3,id:1}"]


def test_an_engine_without_updates_waits_for_nothing():
    """An engine without updates has no deadline."""
    engine = Engine(ORDERS, NoRecords())
    engine.take(0, [], 0)
    engine.punctuate(0)
    assert engine.due_ms is None
