"""A subscription is conflated by an interval, at the subscriber's own pace, or not at all."""

import pytest

from processor.codec.binary import BinaryCodec
from processor.codec.contract import CodecOptions
from processor.errors import SubscriberTooSlow
from processor.merge import KeyFields
from processor.subscriptions import Topic
from tests.subscriptions.desk import Desk


@pytest.fixture
def desk():
    """A desk with an order that matches `/qty > 10`."""
    desk = Desk()
    desk.put(1, qty=20, note="x")
    return desk


def test_a_key_is_sent_once_an_interval(desk):
    """A key is delivered once an interval: the first update starts the interval, and later ones replace it."""
    desk.subscribe("subscribe", None, "conflation=100ms")
    for qty in (1, 2, 3):
        desk.put(1, qty=qty)
        assert desk.engine.due_ms == 100
        desk.pass_ms(33)
        assert desk.take_messages() == []
    desk.pass_ms(1)
    assert desk.take_messages() == ["publish {id:1,qty:3}"]
    assert desk.engine.due_ms is None
    desk.put(1, qty=4)
    assert desk.engine.due_ms == 200
    assert desk.take_messages() == []


def test_each_key_has_its_own_interval(desk):
    """Each key of each subscription has its own interval."""
    desk.subscribe("subscribe", None, "conflation=100ms", sub_id="a")
    desk.subscribe("subscribe", "/id = 2", "conflation=300ms", sub_id="b")
    desk.put(1, qty=1)
    desk.pass_ms(50)
    desk.put(2, qty=2)
    desk.pass_ms(50)
    assert desk.take_messages() == ["publish {id:1,qty:1} @a"]
    assert desk.engine.due_ms == 150
    desk.pass_ms(50)
    assert desk.take_messages() == ["publish {id:2,qty:2} @a"]
    assert desk.engine.due_ms == 350
    desk.pass_ms(200)
    assert desk.take_messages() == ["publish {id:2,qty:2} @b"]


def test_a_delta_has_every_path_that_was_touched(desk):
    """A conflated delta has the removed paths and every touched path with its last value, even if it changed back."""
    desk.put(1, qty=20, note="x", ref=1, old=1)
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    desk.take_messages()
    desk.put(1, qty=21, note="y", ref=1, old=1)
    desk.put(1, qty=22, note="x", ref=1)
    desk.pass_ms(100)
    assert desk.take_messages() == ["delta {id:1,note:x,qty:22} -/old"]


def test_only_selected_paths_are_touched(desk):
    """Only selected paths are touched, also in arrays; with `no_empties` other changes send no message."""
    desk.put(1, legs=[{"a": 1, "b": 1}], note="x", at={"a": 1, "b": 1})
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms,no_empties,select=[-/note,-/legs/b,-/at/b]")
    desk.take_messages()
    desk.put(1, legs=[{"a": 1, "b": 2}], note="y", at={"a": 1, "b": 2})
    desk.pass_ms(100)
    assert desk.take_messages() == []
    desk.put(1, legs=[{"a": 2, "b": 2}], note="y", at={"a": 2, "b": 2})
    desk.pass_ms(100)
    assert desk.take_messages() == ["delta {at:{a:2},id:1,legs:[{a:2}]}"]


def test_a_key_that_left_and_returned_is_sent_in_its_last_state(desk):
    """A key that left and returned within an interval is delivered in its last state, without an `oof`."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "conflation=100ms,oof")
    desk.take_messages()
    desk.put(1, qty=3, note="x")
    desk.put(1, qty=20, note="x")
    desk.delete(1)
    desk.put(1, qty=20)
    desk.pass_ms(100)
    assert desk.take_messages() == ["delta {id:1,qty:20} -/note"]


def test_a_key_that_returned_without_a_selected_change_is_not_sent(desk):
    """Under `no_empties` a key that left and returned without a selected change, key fields aside, is not delivered."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "conflation=100ms,no_empties,select=[-/,+/more]")
    desk.take_messages()
    desk.put(1, qty=3)
    desk.put(1, qty=20)
    desk.pass_ms(100)
    assert desk.take_messages() == []


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda desk: desk.put(1, qty=3), "match"),
        (lambda desk: desk.delete(1), "deleted"),
        (lambda desk: desk.delete(1, b"expire"), "expired"),
    ],
)
def test_a_key_that_was_updated_and_left_is_sent_once(desk, end, reason):
    """A key that was updated and then left within an interval is sent as one `oof` with the last received record."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "conflation=100ms,oof")
    desk.take_messages()
    desk.put(1, qty=21)
    end(desk)
    desk.pass_ms(100)
    assert desk.take_messages() == [f"oof {reason} {{id:1,note:x,qty:20}}"]


def test_an_oof_has_the_reason_that_took_the_record_out_of_focus(desk):
    """An `oof` has the reason for which the record left the focus, also if it was deleted afterwards."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "conflation=100ms,oof")
    desk.take_messages()
    desk.put(1, qty=3)
    desk.delete(1)
    desk.pass_ms(100)
    [message] = desk.subscriber.take(9)
    assert (message.reason, message.version, message.data["qty"]) == ("match", 2, 20)


@pytest.mark.parametrize("options", ["oof", ""])
def test_a_key_that_was_never_delivered_sends_no_oof(desk, options):
    """A key that came and left within an interval, and was never delivered, sends no message."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", f"conflation=100ms,{options}")
    desk.take_messages()
    desk.put(2, qty=20)
    desk.put(2, qty=3)
    desk.put(3, qty=20)
    desk.delete(3)
    desk.pass_ms(100)
    assert desk.take_messages() == []


def test_the_snapshot_is_not_conflated(desk):
    """The snapshot is delivered at once, without conflation."""
    desk.subscribe("sow_and_subscribe", None, "conflation=1s")
    assert desk.take_messages() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end"]


def test_a_message_type_without_deltas_is_conflated_to_its_last_record():
    """A message type without deltas is conflated to its last record."""
    desk = Desk(Topic("blobs", BinaryCodec(CodecOptions()), KeyFields(())))
    desk.take(desk.record("k", b"one"))
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    desk.subscriber.take(9)
    desk.take(desk.record("k", b"two"))
    desk.take(desk.record("k", b"three"))
    desk.pass_ms(100)
    [message] = desk.subscriber.take(9)
    assert (message.data, message.delta) == (b"three", False)


def test_auto_folds_updates_that_the_subscriber_has_not_taken(desk):
    """Under `auto` a fast subscriber receives every update, and a slow one the last update of each key."""
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=auto")
    desk.take_messages()
    desk.put(1, qty=21, note="x")
    assert desk.subscriber.has_waiting
    assert desk.take_messages() == ["delta {id:1,qty:21}"]
    for qty in range(30, 40):
        desk.put(1, qty=qty, note="x")
        desk.put(2, qty=qty)
    assert desk.engine.due_ms is None
    assert desk.take_messages() == ["delta {id:1,qty:39}", "publish {id:2,qty:39}"]


def test_auto_keeps_behind_the_snapshot(desk):
    """Under `auto` updates come after the snapshot and are folded while it waits."""
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=auto")
    desk.put(1, qty=21, note="x")
    desk.put(1, qty=22, note="x")
    assert desk.take_messages() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end", "delta {id:1,qty:22}"]


def test_records_with_the_same_values_are_conflated_as_one(desk):
    """With `conflation_key` the last record with the same values is delivered; records without values are separate."""
    desk.subscribe("subscribe", None, "conflation=100ms,conflation_key=[/item,/side]")
    desk.put(1, item="a", side="buy")
    desk.put(2, item="a", side="buy")
    desk.put(3, item="a")
    desk.put(4, qty=1)
    desk.put(5, qty=2)
    desk.pass_ms(100)
    assert desk.take_messages() == [
        "publish {id:2,item:a,side:buy}",
        "publish {id:3,item:a}",
        "publish {id:4,qty:1}",
        "publish {id:5,qty:2}",
    ]


def test_a_group_is_not_held_back_longer_by_its_updates(desk):
    """The interval of a group begins with its first update, and later updates do not extend it."""
    desk.subscribe("subscribe", None, "conflation=100ms,conflation_key=/item")
    messages = []
    for n in range(10):
        desk.put(1 + n % 3 // 2, item="a", n=n)
        desk.pass_ms(30)
        messages += desk.take_messages()
    assert messages == ["publish {id:1,item:a,n:3}", "publish {id:1,item:a,n:7}"]


def test_a_record_that_waits_is_sent_in_its_current_state(desk):
    """A waiting record is delivered in its current group, and not at all if it was deleted or no longer matches."""
    desk.subscribe("subscribe", "/qty > 10", "conflation=100ms,conflation_key=/item")
    desk.put(1, item="a", qty=20)
    desk.put(1, item="b", qty=20)
    desk.put(2, item="c", qty=20)
    desk.put(2, item="c", qty=3)
    desk.put(3, item="d", qty=20)
    desk.delete(3)
    desk.put(4, item="e", qty=20)
    desk.put(5, item="e", qty=20)
    desk.put(4, item="e", qty=3)
    desk.pass_ms(100)
    assert desk.take_messages() == ["publish {id:1,item:b,qty:20}", "publish {id:5,item:e,qty:20}"]
    desk.put(1, item="a", qty=21)
    desk.pass_ms(100)
    assert desk.take_messages() == ["publish {id:1,item:a,qty:21}"]


def test_auto_folds_by_the_conflation_key_too(desk):
    """Under `auto` updates are folded by the conflation key at the subscriber's pace."""
    desk.subscribe("subscribe", None, "conflation=auto,conflation_key=/item")
    desk.put(1, item="a")
    desk.put(2, item="a")
    assert desk.take_messages() == ["publish {id:2,item:a}"]


def test_a_slow_subscriber_gets_fewer_messages_but_loses_no_state():
    """Above `queue_max` updates are folded per key, and the last message of each key has its current state."""
    desk = Desk(queue_max=4)
    subscription = desk.subscribe("sow_and_delta_subscribe")
    desk.take_messages()
    for n in range(1000):
        desk.put(n % 3, n=n)
    assert len(desk.subscriber._queue) == 4
    assert subscription.waiting == 3
    messages = desk.take_messages()
    assert messages[:4] == ["publish {id:0,n:0}", "publish {id:1,n:1}", "publish {id:2,n:2}", "delta {id:0,n:3}"]
    assert sorted(messages[4:]) == ["delta {id:0,n:999}", "delta {id:1,n:997}", "delta {id:2,n:998}"]
    assert not desk.subscriber.has_waiting
    desk.put(1, n=1)
    assert desk.take_messages() == ["delta {id:1,n:1}"]


def test_no_update_overtakes_another_one_of_its_key():
    """While updates of a subscription are folded, all of its updates are, so none overtakes another one of its key."""
    desk = Desk(queue_max=2)
    desk.subscribe("subscribe")
    for n in range(4):
        desk.put(1, n=n)
    assert [message.version for message in desk.subscriber.take(2)] == [1, 2]
    desk.put(1, n=4)
    assert [message.version for message in desk.subscriber.take(9)] == [5]


@pytest.mark.parametrize("pace", ["", "auto"])
def test_a_slow_subscriber_receives_oof_messages(pace):
    """A slow subscriber receives `oof` messages by the rules of an interval."""
    desk = Desk(queue_max=1)
    for key in (1, 2, 3):
        desk.put(key, qty=20)
    desk.subscribe("sow_and_subscribe", "/qty > 10", f"oof{',conflation=auto' if pace else ''}")
    desk.put(1, qty=21)
    desk.put(1, qty=3)
    desk.put(2, qty=3)
    desk.put(2, qty=30)
    desk.put(4, qty=20)
    desk.put(4, qty=2)
    assert desk.take_messages()[5:] == ["oof match {id:1,qty:20}", "publish {id:2,qty:30}"]


def test_an_interval_waits_for_room():
    """Updates whose interval has passed stay folded while the queue is full, and are delivered when it has room."""
    desk = Desk(queue_max=2)
    desk.subscribe("subscribe", None, "conflation=100ms")
    for key in range(5):
        desk.put(key, n=0)
    desk.pass_ms(100)
    desk.put(4, n=1)
    desk.pass_ms(100)
    assert desk.engine.due_ms is None
    assert desk.take_messages() == ["publish {id:0,n:0}", "publish {id:1,n:0}"]
    assert desk.engine.due_ms == 100
    desk.pass_ms(0)
    assert desk.take_messages() == ["publish {id:2,n:0}", "publish {id:3,n:0}"]
    desk.pass_ms(0)
    assert desk.take_messages() == ["publish {id:4,n:1}"]


def test_conflation_none_delivers_every_update_or_ends():
    """Under `none` a subscriber that is too slow gets an error after all earlier messages; others go on."""
    desk = Desk(queue_max=3)
    desk.subscribe("subscribe", "/id = 1", "conflation=none", sub_id="all")
    desk.subscribe("subscribe", None, None, sub_id="some")
    for n in range(5):
        desk.put(1, n=n)
    assert desk.take_messages() == [f"publish {{id:1,n:{n}}} @all,some" for n in range(3)]
    with pytest.raises(SubscriberTooSlow, match="subscription all to orders: 3 messages wait"):
        desk.take_messages()
    desk.put(1, n=5)
    assert desk.take_messages() == ["publish {id:1,n:5} @some"]


def test_conflation_none_does_not_count_updates_without_a_message():
    """Under `none` updates that send no message do not count against the queue."""
    desk = Desk(queue_max=1)
    desk.put(1, qty=20)
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "conflation=none,no_empties")
    desk.put(1, qty=20)
    desk.put(1, qty=3)
    desk.delete(1)
    assert desk.take_messages() == ["group_begin", "sow {id:1,qty:20}", "group_end"]


def test_conflation_none_keeps_every_update():
    """Under `none` no update is folded while messages wait."""
    desk = Desk(queue_max=100)
    desk.subscribe("subscribe", None, "conflation=none")
    for n in range(100):
        desk.put(1, n=n)
    assert [message.data["n"] for message in desk.subscriber.take(1000)] == list(range(100))


def test_slow_subscriptions_have_their_turn():
    """Several subscriptions that wait for room are served in turn."""
    desk = Desk(queue_max=1)
    for sub_id in ("a", "b"):
        desk.subscribe("subscribe", None, "conflation=auto", sub_id=sub_id)
    for key in (1, 2):
        desk.put(key)
    assert desk.take_messages() == ["publish {id:1} @a", "publish {id:1} @b", "publish {id:2} @a", "publish {id:2} @b"]


def test_an_error_that_was_taken_makes_room():
    """Updates that are due are delivered when no message waits, also if the last one taken was an error."""
    desk = Desk(queue_max=1)
    desk.subscribe("subscribe", None, "conflation=100ms", sub_id="late")
    desk.subscribe("subscribe", None, "conflation=none", sub_id="none")
    desk.put(1, n=1)
    desk.put(1, n=2)
    desk.pass_ms(100)
    assert desk.take_messages() == ["publish {id:1,n:1} @none"]
    assert desk.engine.due_ms is None
    with pytest.raises(SubscriberTooSlow):
        desk.take_messages()
    assert desk.engine.due_ms == 100
    desk.pass_ms(0)
    assert desk.take_messages() == ["publish {id:1,n:2} @late"]


def test_a_subscription_closed_while_it_waits_leaves_its_room():
    """A subscription that is closed while its updates wait for room lets another one be delivered."""
    desk = Desk(queue_max=1)
    first = desk.subscribe("subscribe", "/id = 1", "conflation=100ms", sub_id="a")
    desk.subscribe("subscribe", "/id = 2", "conflation=100ms", sub_id="b")
    desk.put(1)
    desk.put(2)
    desk.pass_ms(100)
    desk.put(1)
    desk.pass_ms(100)
    assert desk.engine.due_ms is None
    desk.close(first)
    assert desk.engine.due_ms == 100
    desk.pass_ms(0)
    assert desk.take_messages() == ["publish {id:2} @b"]
    assert desk.engine.due_ms is None
    assert not desk.subscriber._late
