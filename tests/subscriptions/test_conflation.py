"""How often a subscriber receives updates of a key: by an interval, at its own pace, or of every update."""

import pytest

from processor.codec.binary import BinaryCodec
from processor.codec.contract import CodecOptions
from processor.errors import SubscriberTooSlow
from processor.merge import KeyFields
from processor.subscriptions import Topic
from tests.subscriptions.desk import Desk


@pytest.fixture
def desk():
    """One order matches `/qty > 10`."""
    desk = Desk()
    desk.put(1, qty=20, note="x")
    return desk


def test_a_key_is_told_once_an_interval(desk):
    """The first update waits for the end of the key's interval; later ones take its place and do not restart it."""
    desk.subscribe("subscribe", None, "conflation=100ms")
    for qty in (1, 2, 3):
        desk.put(1, qty=qty)
        assert desk.engine.due_ms == 100
        desk.pass_ms(33)
        assert desk.heard() == []
    desk.pass_ms(1)
    assert desk.heard() == ["publish {id:1,qty:3}"]
    assert desk.engine.due_ms is None
    desk.put(1, qty=4)
    assert desk.engine.due_ms == 200
    assert desk.heard() == []


def test_each_key_has_its_own_interval(desk):
    """And each subscription."""
    desk.subscribe("subscribe", None, "conflation=100ms", sub_id="a")
    desk.subscribe("subscribe", "/id = 2", "conflation=300ms", sub_id="b")
    desk.put(1, qty=1)
    desk.pass_ms(50)
    desk.put(2, qty=2)
    desk.pass_ms(50)
    assert desk.heard() == ["publish {id:1,qty:1} @a"]
    assert desk.engine.due_ms == 150
    desk.pass_ms(50)
    assert desk.heard() == ["publish {id:2,qty:2} @a"]
    assert desk.engine.due_ms == 350
    desk.pass_ms(200)
    assert desk.heard() == ["publish {id:2,qty:2} @b"]


def test_a_delta_tells_every_path_that_was_touched(desk):
    """With its value at the end: one that came back is told too, what nothing happened to is not; what is gone is."""
    desk.put(1, qty=20, note="x", ref=1, old=1)
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    desk.heard()
    desk.put(1, qty=21, note="y", ref=1, old=1)
    desk.put(1, qty=22, note="x", ref=1)
    desk.pass_ms(100)
    assert desk.heard() == ["delta {id:1,note:x,qty:22} -/old"]


def test_only_selected_paths_are_touched(desk):
    """Of what is not selected nobody is told, also in an array; `no_empties` then tells nothing at all."""
    desk.put(1, legs=[{"a": 1, "b": 1}], note="x", at={"a": 1, "b": 1})
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms,no_empties,select=[-/note,-/legs/b,-/at/b]")
    desk.heard()
    desk.put(1, legs=[{"a": 1, "b": 2}], note="y", at={"a": 1, "b": 2})
    desk.pass_ms(100)
    assert desk.heard() == []
    desk.put(1, legs=[{"a": 2, "b": 2}], note="y", at={"a": 2, "b": 2})
    desk.pass_ms(100)
    assert desk.heard() == ["delta {at:{a:2},id:1,legs:[{a:2}]}"]


def test_a_key_that_returned_between_is_told_what_it_is_now(desk):
    """Left and returned in one interval: only the final state, no `oof`."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "conflation=100ms,oof")
    desk.heard()
    desk.put(1, qty=3, note="x")
    desk.put(1, qty=20, note="x")
    desk.delete(1)
    desk.put(1, qty=20)
    desk.pass_ms(100)
    assert desk.heard() == ["delta {id:1,qty:20} -/note"]


def test_a_key_that_returned_with_nothing_selected_is_not_told(desk):
    """Under `no_empties`: its key fields are no change."""
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "conflation=100ms,no_empties,select=[-/,+/more]")
    desk.heard()
    desk.put(1, qty=3)
    desk.put(1, qty=20)
    desk.pass_ms(100)
    assert desk.heard() == []


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda desk: desk.put(1, qty=3), "match"),
        (lambda desk: desk.delete(1), "deleted"),
        (lambda desk: desk.delete(1, b"expire"), "expired"),
    ],
)
def test_a_key_that_was_updated_and_left_is_told_once(desk, end, reason):
    """One `oof`, with the record received last; the update before is nobody's business any more."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "conflation=100ms,oof")
    desk.heard()
    desk.put(1, qty=21)
    end(desk)
    desk.pass_ms(100)
    assert desk.heard() == [f"oof {reason} {{id:1,note:x,qty:20}}"]


def test_what_took_it_out_of_focus_is_told(desk):
    """A record that left by its filter, and was deleted when it was none of the subscriber's any more."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "conflation=100ms,oof")
    desk.heard()
    desk.put(1, qty=3)
    desk.delete(1)
    desk.pass_ms(100)
    [message] = desk.subscriber.take(9)
    assert (message.reason, message.version, message.data["qty"]) == ("match", 2, 20)


@pytest.mark.parametrize("options", ["oof", ""])
def test_a_key_that_was_never_delivered_is_not_told_to_leave(desk, options):
    """Came and went in one interval: nothing."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", f"conflation=100ms,{options}")
    desk.heard()
    desk.put(2, qty=20)
    desk.put(2, qty=3)
    desk.put(3, qty=20)
    desk.delete(3)
    desk.pass_ms(100)
    assert desk.heard() == []


def test_the_snapshot_is_not_conflated(desk):
    """It comes at once."""
    desk.subscribe("sow_and_subscribe", None, "conflation=1s")
    assert desk.heard() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end"]


def test_a_message_type_without_deltas_is_folded_whole():
    """The last record stands for all."""
    desk = Desk(Topic("blobs", BinaryCodec(CodecOptions()), KeyFields(())))
    desk.take(desk.record("k", b"one"))
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    desk.subscriber.take(9)
    desk.take(desk.record("k", b"two"))
    desk.take(desk.record("k", b"three"))
    desk.pass_ms(100)
    [message] = desk.subscriber.take(9)
    assert (message.data, message.delta) == (b"three", False)


def test_auto_folds_what_the_subscriber_has_not_taken(desk):
    """A subscriber that reads all the time receives every update, one that does not of the last one of each key."""
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=auto")
    desk.heard()
    desk.put(1, qty=21, note="x")
    assert desk.subscriber.has_waiting
    assert desk.heard() == ["delta {id:1,qty:21}"]
    for qty in range(30, 40):
        desk.put(1, qty=qty, note="x")
        desk.put(2, qty=qty)
    assert desk.engine.due_ms is None
    assert desk.heard() == ["delta {id:1,qty:39}", "publish {id:2,qty:39}"]


def test_auto_keeps_behind_the_snapshot(desk):
    """Updates in the meantime are folded."""
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=auto")
    desk.put(1, qty=21, note="x")
    desk.put(1, qty=22, note="x")
    assert desk.heard() == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end", "delta {id:1,qty:22}"]


def test_records_with_the_same_values_are_conflated_as_one(desk):
    """`conflation_key`: the last of those with the same values is told; those without any go by their own key."""
    desk.subscribe("subscribe", None, "conflation=100ms,conflation_key=[/item,/side]")
    desk.put(1, item="a", side="buy")
    desk.put(2, item="a", side="buy")
    desk.put(3, item="a")
    desk.put(4, qty=1)
    desk.put(5, qty=2)
    desk.pass_ms(100)
    assert desk.heard() == [
        "publish {id:2,item:a,side:buy}",
        "publish {id:3,item:a}",
        "publish {id:4,qty:1}",
        "publish {id:5,qty:2}",
    ]


def test_a_group_is_not_held_back_longer_by_its_updates(desk):
    """The interval runs from the first of them, also where one record is updated all the time."""
    desk.subscribe("subscribe", None, "conflation=100ms,conflation_key=/item")
    told = []
    for n in range(10):
        desk.put(1 + n % 3 // 2, item="a", n=n)
        desk.pass_ms(30)
        told += desk.heard()
    assert told == ["publish {id:1,item:a,n:3}", "publish {id:1,item:a,n:7}"]


def test_a_record_that_waits_is_not_told_as_it_was(desk):
    """A record that left its group is delivered in the other one, one that is gone or does not match not at all."""
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
    assert desk.heard() == ["publish {id:1,item:b,qty:20}", "publish {id:5,item:e,qty:20}"]
    desk.put(1, item="a", qty=21)
    desk.pass_ms(100)
    assert desk.heard() == ["publish {id:1,item:a,qty:21}"]


def test_auto_folds_by_the_conflation_key_too(desk):
    """At the subscriber's pace."""
    desk.subscribe("subscribe", None, "conflation=auto,conflation_key=/item")
    desk.put(1, item="a")
    desk.put(2, item="a")
    assert desk.heard() == ["publish {id:2,item:a}"]


def test_a_slow_subscriber_is_told_less_but_loses_nothing():
    """From `queue_max` on updates are folded per key, and the last message of each key has its current state."""
    desk = Desk(queue_max=4)
    subscription = desk.subscribe("sow_and_delta_subscribe")
    desk.heard()
    for n in range(1000):
        desk.put(n % 3, n=n)
    assert len(desk.subscriber._queue) == 4
    assert subscription.waiting == 3
    told = desk.heard()
    assert told[:4] == ["publish {id:0,n:0}", "publish {id:1,n:1}", "publish {id:2,n:2}", "delta {id:0,n:3}"]
    assert sorted(told[4:]) == ["delta {id:0,n:999}", "delta {id:1,n:997}", "delta {id:2,n:998}"]
    assert not desk.subscriber.has_waiting
    desk.put(1, n=1)
    assert desk.heard() == ["delta {id:1,n:1}"]


def test_a_key_that_waits_is_told_in_its_order():
    """While anything of a subscription is folded all of it is: no update overtakes another of its key."""
    desk = Desk(queue_max=2)
    desk.subscribe("subscribe")
    for n in range(4):
        desk.put(1, n=n)
    assert [message.version for message in desk.subscriber.take(2)] == [1, 2]
    desk.put(1, n=4)
    assert [message.version for message in desk.subscriber.take(9)] == [5]


@pytest.mark.parametrize("pace", ["", "auto"])
def test_a_slow_subscriber_is_told_what_left(pace):
    """By the same rules as in an interval."""
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
    assert desk.heard()[5:] == ["oof match {id:1,qty:20}", "publish {id:2,qty:30}"]


def test_an_interval_waits_for_room():
    """Updates that are due stay folded as long as the queue is full, and is told when there is room."""
    desk = Desk(queue_max=2)
    desk.subscribe("subscribe", None, "conflation=100ms")
    for key in range(5):
        desk.put(key, n=0)
    desk.pass_ms(100)
    desk.put(4, n=1)
    desk.pass_ms(100)
    assert desk.engine.due_ms is None
    assert desk.heard() == ["publish {id:0,n:0}", "publish {id:1,n:0}"]
    assert desk.engine.due_ms == 100
    desk.pass_ms(0)
    assert desk.heard() == ["publish {id:2,n:0}", "publish {id:3,n:0}"]
    desk.pass_ms(0)
    assert desk.heard() == ["publish {id:4,n:1}"]


def test_conflation_none_is_told_every_update_or_ends():
    """A subscriber that is too slow hears so, after all that came before it; the others go on."""
    desk = Desk(queue_max=3)
    desk.subscribe("subscribe", "/id = 1", "conflation=none", sub_id="all")
    desk.subscribe("subscribe", None, None, sub_id="some")
    for n in range(5):
        desk.put(1, n=n)
    assert desk.heard() == [f"publish {{id:1,n:{n}}} @all,some" for n in range(3)]
    with pytest.raises(SubscriberTooSlow, match="subscription all to orders: 3 messages wait"):
        desk.heard()
    desk.put(1, n=5)
    assert desk.heard() == ["publish {id:1,n:5} @some"]


def test_conflation_none_does_not_end_by_what_is_not_told():
    """A record that leaves unasked, or changes nothing, needs no room."""
    desk = Desk(queue_max=1)
    desk.put(1, qty=20)
    desk.subscribe("sow_and_delta_subscribe", "/qty > 10", "conflation=none,no_empties")
    desk.put(1, qty=20)
    desk.put(1, qty=3)
    desk.delete(1)
    assert desk.heard() == ["group_begin", "sow {id:1,qty:20}", "group_end"]


def test_conflation_none_keeps_every_update():
    """Nothing is folded though much waits."""
    desk = Desk(queue_max=100)
    desk.subscribe("subscribe", None, "conflation=none")
    for n in range(100):
        desk.put(1, n=n)
    assert [message.data["n"] for message in desk.subscriber.take(1000)] == list(range(100))


def test_slow_subscriptions_have_their_turn():
    """Where several wait for room none waits for another one's last."""
    desk = Desk(queue_max=1)
    for sub_id in ("a", "b"):
        desk.subscribe("subscribe", None, "conflation=auto", sub_id=sub_id)
    for key in (1, 2):
        desk.put(key)
    assert desk.heard() == ["publish {id:1} @a", "publish {id:1} @b", "publish {id:2} @a", "publish {id:2} @b"]


def test_an_end_that_was_heard_makes_room():
    """Updates that are due are delivered when no other message waits, also when the last of it was an error."""
    desk = Desk(queue_max=1)
    desk.subscribe("subscribe", None, "conflation=100ms", sub_id="late")
    desk.subscribe("subscribe", None, "conflation=none", sub_id="none")
    desk.put(1, n=1)
    desk.put(1, n=2)
    desk.pass_ms(100)
    assert desk.heard() == ["publish {id:1,n:1} @none"]
    assert desk.engine.due_ms is None
    with pytest.raises(SubscriberTooSlow):
        desk.heard()
    assert desk.engine.due_ms == 100
    desk.pass_ms(0)
    assert desk.heard() == ["publish {id:1,n:2} @late"]


def test_who_is_closed_while_it_is_late_is_forgotten():
    """The room that a closed subscription leaves serves others."""
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
    assert desk.heard() == ["publish {id:2} @b"]
    assert desk.engine.due_ms is None
    assert not desk.subscriber._late
