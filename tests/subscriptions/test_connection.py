"""Several subscriptions on one connection, the end of one of them, and how messages are taken."""

import pytest

from processor.errors import ConfigurationError, RecordRejected, Stop, SubscriberTooSlow
from processor.subscriptions import MemoryRecords, SubscriptionSpec, parse_options
from tests.subscriptions.desk import CALLS, Desk


@pytest.fixture
def desk():
    """One order is there."""
    desk = Desk()
    desk.put(1, qty=20, note="x")
    return desk


def test_a_single_subscription_says_no_ids(desk):
    """A single subscription needs no id in its messages."""
    desk.subscribe("sow_and_subscribe")
    desk.put(1, qty=21)
    assert {message.sub_ids for message in desk.subscriber.take(9)} == {()}


def test_an_update_is_sent_once_with_all_that_it_matches(desk):
    """In one message."""
    for sub_id, filtered in (("a", "/qty > 10"), ("b", "/qty < 30"), ("c", "/qty > 100")):
        desk.subscribe("subscribe", filtered, sub_id=sub_id)
    desk.put(1, qty=21)
    desk.put(1, qty=31)
    assert desk.heard() == ["publish {id:1,qty:21} @a,b", "publish {id:1,qty:31} @a"]


def test_it_is_full_if_any_of_them_asks_for_full(desk):
    """A whole record serves those that asked for a delta."""
    desk.subscribe("sow_and_delta_subscribe", None, sub_id="delta")
    desk.subscribe("sow_and_delta_subscribe", "/qty < 50", "no_empties", sub_id="none")
    whole = desk.subscribe("sow_and_subscribe", "/qty < 100", sub_id="whole")
    desk.heard()
    desk.put(1, qty=21, note="x")
    desk.put(1, qty=21, note="x")
    desk.close(whole)
    desk.put(1, qty=22, note="x")
    assert desk.heard() == [
        "publish {id:1,note:x,qty:21} @delta,none",
        "publish {id:1,note:x,qty:21} @delta",
        "delta {id:1,qty:22} @delta,none",
    ]


def test_one_that_gets_it_back_makes_it_whole_for_all(desk):
    """A subscription that a record comes back to needs all of it."""
    desk.subscribe("sow_and_delta_subscribe", None, sub_id="a")
    desk.subscribe("sow_and_delta_subscribe", "/qty > 20", sub_id="b")
    desk.heard()
    desk.put(1, qty=21, note="x")
    assert desk.heard() == ["publish {id:1,note:x,qty:21} @a,b"]


@pytest.mark.parametrize("options", ["select=[-/note]", "timestamp", "no_sowkey", "no_empties"])
def test_an_update_is_one_message_whatever_the_options(desk, options):
    """Subscriptions with other select lists, times and keys get one message that has all that any of them asked for."""
    desk.subscribe("delta_subscribe", None, sub_id="a")
    desk.subscribe("delta_subscribe", None, options, sub_id="b")
    desk.subscribe("delta_subscribe", "/id = 1", options, sub_id="c")
    desk.put(1, qty=21, note="y")
    [message] = desk.subscriber.take(9)
    assert (message.data, message.sub_ids) == ({"id": 1, "qty": 21, "note": "y"}, ("a", "b", "c"))
    assert (message.sow_key, message.timestamp is not None) == ("1", options == "timestamp")


def test_a_message_for_several_has_the_union_of_their_select_lists(desk):
    """Each path is sent that one of the lists includes, key fields always, and nothing that none of them includes."""
    desk.put(1, qty=20, note="x", at={"a": 1, "b": 1, "c": 1}, legs=[{"a": 1, "b": 1}], more=1)
    desk.subscribe("delta_subscribe", None, "select=[-/,+/qty,+/at,-/at/b],no_sowkey", sub_id="a")
    desk.subscribe("delta_subscribe", "/qty > 10", "select=[-/,+/note,+/at/b,-/at/b/x,+/legs/b],no_sowkey", sub_id="b")
    desk.subscribe("delta_subscribe", "/qty > 100", "timestamp", sub_id="c")
    desk.put(1, qty=21, note="y", at={"a": 1, "b": 2, "c": 2}, legs=[{"a": 2, "b": 2}], more=2)
    desk.put(1, qty=101, note="y", at={"a": 1, "b": 2, "c": 2}, legs=[{"a": 2, "b": 2}], more=2)
    messages = desk.subscriber.take(9)
    assert [(message.sow_key, message.timestamp is not None) for message in messages] == [(None, False), ("1", True)]
    assert messages[0].data == {"id": 1, "qty": 21, "note": "y", "at": {"b": 2, "c": 2}, "legs": [{"b": 2}]}
    assert messages[1].data["more"] == 2, "whole, as it comes into focus for c"


def test_what_leaves_several_is_one_message_with_all_they_asked_for(desk):
    """An `oof` has the union of the select lists, too."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "oof,select=[-/,+/qty]", sub_id="a")
    desk.subscribe("sow_and_subscribe", "/qty > 15", "oof,select=[-/,+/note]", sub_id="b")
    desk.heard()
    desk.put(1, qty=3, note="y", more=1)
    desk.put(1, qty=20, note="z", more=1)
    desk.delete(1)
    assert desk.heard() == [
        "oof match {id:1,note:y,qty:3} @a,b",
        "publish {id:1,note:z,qty:20} @a,b",
        "oof deleted {id:1,note:z,qty:20} @a,b",
    ]


def test_a_message_for_several_has_the_oldest_of_their_bases(desk):
    """Where one was not sent an update that left its fields as they were, the delta applies to the version it has."""
    desk.subscribe("delta_subscribe", None, sub_id="a")
    desk.subscribe("delta_subscribe", None, "no_empties,select=[-/,+/note]", sub_id="b")
    desk.put(1, qty=21, note="x")
    desk.put(1, qty=21, note="y")
    desk.put(1, qty=21, note="z")
    bases = [(message.delta_base, message.version, message.sub_ids) for message in desk.subscriber.take(9)]
    assert bases == [(1, 2, ("a",)), (1, 3, ("a", "b")), (3, 4, ("a", "b"))]


def test_what_leaves_one_and_stays_in_another_is_sent_apart(desk):
    """An `oof` is for those whose focus it left; one reason, one message."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "oof", sub_id="a")
    desk.subscribe("sow_and_subscribe", "/qty > 15", "oof", sub_id="b")
    desk.subscribe("sow_and_subscribe", None, "oof", sub_id="c")
    desk.heard()
    desk.put(1, qty=3)
    desk.delete(1)
    assert desk.heard() == ["oof match {id:1,qty:3} @a,b", "publish {id:1,qty:3} @c", "oof deleted {id:1,qty:3} @c"]


def test_each_has_its_own_snapshot(desk):
    """Whenever it comes; ids are said from the second subscription on, whatever was told before it."""
    desk.subscribe("sow_and_subscribe")
    desk.put(1, qty=21)
    desk.subscribe("sow", None, sub_id="late")
    desk.put(1, qty=22)
    assert desk.heard() == [
        "group_begin",
        "sow {id:1,note:x,qty:20}",
        "group_end",
        "publish {id:1,qty:21}",
        "group_begin @late",
        "sow {id:1,qty:21} @late",
        "group_end @late",
        "publish {id:1,qty:22} @1",
    ]


def test_a_name_is_given_once(desk):
    """Until the subscription ends; those without one get a number that nobody has."""
    first = desk.subscribe("subscribe", sub_id="1")
    with pytest.raises(ConfigurationError, match="there is a subscription '1' on this connection"):
        desk.subscribe("subscribe", sub_id="1")
    assert desk.subscribe("subscribe").sub_id == "2"
    desk.close(first)
    second = desk.subscribe("subscribe", sub_id="1")
    desk.close(first)
    desk.put(1)
    assert desk.heard() == ["publish {id:1} @2,1"]
    desk.close(second)


def test_a_snapshots_name_is_free_when_it_was_taken(desk):
    """Nothing follows it."""
    for _ in range(2):
        desk.subscribe("sow", sub_id="a")
        assert len(desk.heard()) == 3


def test_connections_do_not_know_each_other(desk):
    """Each has its queue and its names."""
    other = desk.engine.connect()
    desk.subscribe("subscribe", sub_id="a")
    desk.subscribe("subscribe", sub_id="a", connection=other)
    desk.put(1)
    assert desk.heard() == desk.heard(other) == ["publish {id:1} @a"]


def test_a_closed_subscription_is_told_nothing_more(desk):
    """Closing a subscription drops its messages and snapshot, and takes its name from messages for others."""
    closed = desk.subscribe("sow_and_subscribe", sub_id="a")
    desk.subscribe("subscribe", sub_id="b")
    folded = desk.subscribe("subscribe", None, "conflation=auto", sub_id="c")
    desk.put(1, qty=21)
    desk.subscribe("subscribe", "/qty > 100", sub_id="d")
    desk.close(closed)
    desk.close(folded)
    desk.put(1, qty=22)
    assert desk.heard() == ["publish {id:1,qty:21} @b", "publish {id:1,qty:22} @b"]
    assert not desk.subscriber.has_waiting


def test_one_that_has_ended_can_be_closed(desk):
    """Closing a subscription that failed drops its error; unless its name is another one's by now."""
    slow = desk.engine.connect(queue_max=1)
    ended = desk.subscribe("subscribe", None, "conflation=none", sub_id="a", connection=slow)
    for n in range(2):
        desk.put(1, n=n)
    desk.close(ended)
    assert not slow.has_waiting
    ended = desk.subscribe("subscribe", None, "conflation=none", sub_id="a", connection=slow)
    for n in range(2):
        desk.put(1, n=n)
    desk.subscribe("subscribe", sub_id="a", connection=slow)
    desk.close(ended)
    assert desk.heard(slow) == ["publish {id:1,n:0} @a"]
    with pytest.raises(SubscriberTooSlow):
        desk.heard(slow)


def test_the_first_of_several_can_be_closed(desk):
    """Its messages that say no ids go, too, and no others."""
    first = desk.subscribe("subscribe")
    desk.put(1, qty=21)
    second = desk.subscribe("subscribe")
    desk.put(1, qty=22)
    desk.close(first)
    assert desk.heard() == ["publish {id:1,qty:22} @2"]
    desk.close(second)
    desk.put(1, qty=23)
    assert desk.heard() == []


def test_a_closed_connection_has_nothing(desk):
    """And the engine forgets its subscriptions."""
    desk.subscribe("sow_and_subscribe", "/qty > 1")
    desk.subscribe("subscribe", None, "conflation=100ms")
    desk.put(1, qty=21)
    desk.subscriber.close()
    desk.put(1, qty=22)
    desk.pass_ms(100)
    assert desk.heard() == []
    assert not desk.subscriber.has_waiting
    assert desk.engine.due_ms is None
    assert not desk.engine._routes
    assert len(desk.engine._routes._index) == 0


def test_messages_are_taken_in_pieces(desk):
    """Never more than asked for, each once, in order; also through a snapshot and folded updates."""
    small = desk.engine.connect(queue_max=2)
    for key in range(2, 6):
        desk.put(key)
    desk.subscribe("sow_and_subscribe", connection=small)
    for n in range(3):
        desk.put(1, n=n)
    taken = []
    for size in (0, 1, 2, 3, 1, 1, 9):
        piece = small.take(size)
        assert len(piece) <= size
        taken += [message.command for message in piece]
    assert taken == ["group_begin", *["sow"] * 5, "group_end", "publish", "publish"]
    assert not small.has_waiting


def break_record(desk, key, value=b"{"):
    """A record that no worker wrote."""
    desk.take(desk.record(key, value))


def test_a_record_that_cannot_be_decoded_ends_the_subscriptions(desk):
    """All of them, whatever their filter: nobody can say whom it concerns. What came before is told before."""
    desk.subscribe("subscribe", "/id = 1")
    other = desk.engine.connect()
    desk.subscribe("subscribe", "/symbol = 'X'", connection=other)
    desk.put(1, qty=21)
    break_record(desk, 3)
    desk.put(1, qty=22)
    place = (
        rf"orders: partition 1, offset {desk.offsets[1] - 1} of its SOW topic, key '3', is not what a worker writes: "
    )
    assert desk.heard() == ["publish {id:1,qty:21}"]
    with pytest.raises(Stop, match=place):
        desk.heard()
    with pytest.raises(Stop, match=place):
        desk.heard(other)
    assert desk.heard() == desk.heard(other) == []
    desk.subscribe("subscribe")
    desk.put(1, qty=23)
    assert desk.heard() == ["publish {id:1,qty:23}"]


@pytest.mark.parametrize("options", ["", "conflation=100ms", "conflation=auto"])
def test_it_ends_those_that_would_not_have_looked_at_it(desk, options):
    """Where it would have been folded, and nobody asks for a value."""
    desk.subscribe("subscribe", None, options)
    break_record(desk, 3)
    desk.put(3)
    desk.pass_ms(100)
    with pytest.raises(Stop, match=f"partition 1, offset {desk.offsets[1] - 1} of"):
        desk.heard()
    assert not desk.subscriber.has_waiting


def test_so_does_one_that_could_not_be_decoded_before(desk):
    """The update cannot be delivered; the place is that of the record that is broken."""
    break_record(desk, 3)
    offset = desk.offsets[1]
    desk.subscribe("delta_subscribe")
    desk.put(3)
    with pytest.raises(Stop, match=f"partition 1, offset {offset} of"):
        desk.heard()


@pytest.mark.parametrize("value", [b"[1]", b"5", b'"x"', b"null"])
@pytest.mark.parametrize("call", ["sow_and_subscribe", "sow_and_delta_subscribe", "delta_subscribe"])
def test_what_is_no_object_is_no_record(desk, value, call):
    """It can be parsed, but has no fields that could be compared, selected or told."""
    desk.subscribe(call, options="select=[-/,+/qty]")
    desk.heard()
    break_record(desk, 1, value)
    place = f"partition 1, offset {desk.offsets[1]} of its SOW topic, key '1', is not what a worker writes: not_an_obj"
    with pytest.raises(Stop, match=place):
        desk.heard()
    desk.subscribe("sow")
    assert desk.heard()[0] == "group_begin"
    with pytest.raises(Stop, match="key '1', is not what a worker writes: not_an_object: a SOW record is an object"):
        desk.heard()


def test_a_snapshot_with_such_a_record_ends_its_subscription(desk):
    """With the offset and the key; what waits behind it goes, others go on."""
    break_record(desk, 3)
    offset = desk.offsets[1]
    desk.subscribe("sow_and_subscribe", sub_id="a")
    desk.subscribe("subscribe", sub_id="b")
    desk.put(1, qty=21)
    assert desk.heard() == ["group_begin @a", "sow {id:1,note:x,qty:20} @a"]
    with pytest.raises(Stop, match=f"orders: offset {offset} of its SOW topic, key '3'"):
        desk.heard()
    desk.put(1, qty=22)
    assert desk.heard() == ["publish {id:1,qty:21} @b", "publish {id:1,qty:22} @b"]


@pytest.mark.parametrize("options", ["top_n=3", "order_by=/qty"])
def test_what_must_be_known_at_once_is_refused_at_once(desk, options):
    """An order needs all records: such a subscription does not begin, and leaves nothing."""
    break_record(desk, 3)
    with pytest.raises(Stop, match="is not what a worker writes"):
        desk.subscribe("sow_and_subscribe", None, options)
    assert not desk.subscriber.has_waiting
    desk.put(1, qty=21)
    assert desk.heard() == []


def test_a_third_partys_error_ends_only_that_subscription(desk, functions):
    """Its subscriber hears of it after what came before; the others receive that update, too."""
    desk.subscribe("subscribe", "PICKY(/qty) > 10", sub_id="a")
    desk.subscribe("subscribe", "/qty > 10", sub_id="b")
    for qty in (12, 13, 14):
        desk.put(1, qty=qty)
    assert desk.heard() == ["publish {id:1,qty:12} @a,b"]
    with pytest.raises(RecordRejected, match=r"plugin_failed.*unlucky"):
        desk.heard()
    assert desk.heard() == ["publish {id:1,qty:13} @b", "publish {id:1,qty:14} @b"]


def test_a_third_partys_error_in_an_order_ends_only_that_subscription(desk, functions):
    """Windows are ordered at every update."""
    desk.subscribe("subscribe", None, "top_n=3,order_by=PICKY(/qty)", sub_id="a")
    desk.subscribe("subscribe", None, sub_id="b")
    desk.put(1, qty=13)
    with pytest.raises(RecordRejected, match="unlucky"):
        desk.heard()
    desk.put(1, qty=14)
    assert desk.heard() == ["publish {id:1,qty:13} @b", "publish {id:1,qty:14} @b"]


def test_a_third_partys_error_in_a_snapshot_ends_only_that_subscription(desk, functions):
    """The one it was for."""
    desk.put(2, qty=13)
    desk.subscribe("sow_and_subscribe", "PICKY(/qty) > 1", sub_id="a")
    desk.subscribe("subscribe", sub_id="b")
    assert desk.heard() == ["group_begin @a", "sow {id:1,note:x,qty:20} @a"]
    with pytest.raises(RecordRejected, match="unlucky"):
        desk.heard()
    desk.put(1, qty=3)
    assert desk.heard() == ["publish {id:1,qty:3} @b"]


class Forgetful(MemoryRecords):
    """A view whose disk fails."""

    fails = False

    def scan(self):
        """Some records, and then no more."""
        for record in super().scan():
            yield record
            if self.fails:
                raise Stop("the disk is gone")


def test_a_view_that_fails_ends_what_asks_it():
    """A snapshot that is taken meanwhile; with what has been sent of it."""
    view = Forgetful()
    desk = Desk(view=view)
    for key in range(3):
        desk.put(key)
    desk.subscribe("sow")
    assert len(desk.subscriber.take(2)) == 2
    view.fails = True
    with pytest.raises(Stop, match="the disk is gone"):
        desk.heard()
    assert not desk.subscriber.has_waiting


@pytest.mark.parametrize("pace", ["auto", "100ms"])
def test_what_fails_when_it_is_told_ends_only_that_subscription(monkeypatch, pace):
    """Of two folded updates the other one is delivered."""
    desk = Desk()
    for sub_id in ("a", "b"):
        desk.subscribe("subscribe", None, f"conflation={pace}", sub_id=sub_id)
    desk.put(1)
    desk.put(2)

    def release():
        raise Stop("no")

    monkeypatch.setattr(desk.subscriber._subscriptions["a"], "release", release)
    desk.pass_ms(100)
    told, errors = [], []
    while desk.subscriber.has_waiting:
        try:
            told += desk.heard()
        except Stop as error:
            errors.append(str(error))
    assert errors == ["no"]
    assert told == ["publish {id:1} @b", "publish {id:2} @b"]
    desk.put(1, n=1)
    desk.pass_ms(100)
    assert desk.heard() == ["publish {id:1,n:1} @b"]


def test_who_is_too_slow_in_a_snapshot_hears_of_it_behind_it(desk):
    """The snapshot is delivered to its end."""
    slow = desk.engine.connect(queue_max=1)
    desk.subscribe("sow_and_subscribe", None, "conflation=none", connection=slow)
    desk.put(1, qty=21)
    assert desk.heard(slow) == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end"]
    with pytest.raises(SubscriberTooSlow):
        desk.heard(slow)


def test_a_request_may_be_used_again(desk):
    """It is what is wanted, not a subscription."""
    how = CALLS["sow_and_subscribe"]
    request = SubscriptionSpec(desk.topic, "/qty > 10", parse_options("", **how), **how)
    for _ in range(2):
        desk.subscriber.subscribe(request)
    assert desk.heard()[2:] == ["group_end", "group_begin @2", "sow {id:1,note:x,qty:20} @2", "group_end @2"]


def test_many_filters_are_not_asked_one_by_one(monkeypatch):
    """Of subscriptions to one value each only that one's filter looks at an update."""
    from processor.subscriptions.update import Update

    desk = Desk()
    for n in range(1000):
        desk.subscribe("subscribe", f"/symbol = 'X{n}'", sub_id=str(n))
    asked = []
    focus = Update.matches
    monkeypatch.setattr(Update, "matches", lambda change, text: asked.append(text) or focus(change, text))
    desk.put(1, symbol="X7")
    desk.put(1, symbol="X8")
    assert desk.heard() == ["publish {id:1,symbol:X7} @7", "publish {id:1,symbol:X8} @8"]
    assert len(asked) == 3


@pytest.mark.parametrize("options", ["", "conflation=100ms", "top_n=2,order_by=/qty"])
def test_what_a_subscriber_does_to_its_messages_is_told_to_nobody_later(desk, options):
    """Messages share their data with each other, but not with what the engine knows of the records."""
    desk.subscribe("sow_and_delta_subscribe", None, options)
    for message in desk.subscriber.take(10):
        if message.data is not None:
            message.data.clear()
    for qty in (21, 22):
        desk.put(1, qty=qty, note="x")
        desk.pass_ms(100)
        [message] = desk.subscriber.take(10)
        assert message.data == {"id": 1, "qty": qty}
        message.data.clear()
    late = desk.engine.connect()
    desk.subscribe("sow", "/id = 1", connection=late)
    assert desk.heard(late) == ["group_begin", "sow {id:1,note:x,qty:22}", "group_end"]
