"""Several subscriptions share a connection, end one by one, and have their messages taken in pieces."""

import pytest

from processor.errors import ConfigurationError, RecordRejected, Stop, SubscriberTooSlow, SubscriptionFailed
from processor.subscriptions import MemoryRecords, SubscriptionSpec, parse_options
from processor.subscriptions.request.update import Update
from tests.subscriptions.desk import CALLS, Desk


@pytest.fixture
def desk():
    """A desk with one order."""
    desk = Desk()
    desk.put(1, qty=20, note="x")
    return desk


def test_a_single_subscription_sends_no_ids(desk):
    """The messages of a single subscription carry no id."""
    desk.subscribe("sow_and_subscribe")
    desk.put(1, qty=21)
    assert {message.sub_ids for message in desk.subscriber.take(9)} == {()}


def test_an_update_is_sent_once_with_all_matching_ids(desk):
    """An update is sent in one message with the ids of all subscriptions that it matches."""
    for sub_id, filtered in (("a", "/qty > 10"), ("b", "/qty < 30"), ("c", "/qty > 100")):
        desk.subscribe("subscribe", filtered, sub_id=sub_id)
    desk.put(1, qty=21)
    desk.put(1, qty=31)
    assert desk.take_messages() == ["publish {id:1,qty:21} @a,b", "publish {id:1,qty:31} @a"]


def test_a_message_is_full_if_any_subscription_asks_for_full(desk):
    """A message is a full record if any of its subscriptions asks for one; it serves those that asked for a delta."""
    desk.subscribe("sow_and_delta_subscribe", None, sub_id="delta")
    desk.subscribe("sow_and_delta_subscribe", "/qty < 50", "no_empties", sub_id="none")
    whole = desk.subscribe("sow_and_subscribe", "/qty < 100", sub_id="whole")
    desk.take_messages()
    desk.put(1, qty=21, note="x")
    desk.put(1, qty=21, note="x")
    desk.close(whole)
    desk.put(1, qty=22, note="x")
    assert desk.take_messages() == [
        "publish {id:1,note:x,qty:21} @delta,none",
        "publish {id:1,note:x,qty:21} @delta",
        "delta {id:1,qty:22} @delta,none",
    ]


def test_a_record_that_returns_to_one_is_sent_in_full_to_all(desk):
    """A record that comes back into the focus of one subscription is sent in full to all of them."""
    desk.subscribe("sow_and_delta_subscribe", None, sub_id="a")
    desk.subscribe("sow_and_delta_subscribe", "/qty > 20", sub_id="b")
    desk.take_messages()
    desk.put(1, qty=21, note="x")
    assert desk.take_messages() == ["publish {id:1,note:x,qty:21} @a,b"]


@pytest.mark.parametrize("options", ["select=[-/note]", "timestamp", "no_sowkey", "no_empties"])
def test_an_update_is_one_message_under_different_options(desk, options):
    """An update is one message under different options, with everything that any of its subscriptions asked for."""
    desk.subscribe("delta_subscribe", None, sub_id="a")
    desk.subscribe("delta_subscribe", None, options, sub_id="b")
    desk.subscribe("delta_subscribe", "/id = 1", options, sub_id="c")
    desk.put(1, qty=21, note="y")
    [message] = desk.subscriber.take(9)
    assert (message.data, message.sub_ids) == ({"id": 1, "qty": 21, "note": "y"}, ("a", "b", "c"))
    assert (message.sow_key, message.timestamp is not None) == ("1", options == "timestamp")


def test_a_message_for_several_has_the_union_of_their_select_lists(desk):
    """A message has the union of its subscriptions' select lists, and always the key fields."""
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


def test_an_oof_of_several_subscriptions_is_one_message(desk):
    """An `oof` for several subscriptions is one message with the union of their select lists."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "oof,select=[-/,+/qty]", sub_id="a")
    desk.subscribe("sow_and_subscribe", "/qty > 15", "oof,select=[-/,+/note]", sub_id="b")
    desk.take_messages()
    desk.put(1, qty=3, note="y", more=1)
    desk.put(1, qty=20, note="z", more=1)
    desk.delete(1)
    assert desk.take_messages() == [
        "oof match {id:1,note:y,qty:3} @a,b",
        "publish {id:1,note:z,qty:20} @a,b",
        "oof deleted {id:1,note:z,qty:20} @a,b",
    ]


def test_a_message_for_several_has_the_oldest_of_their_bases(desk):
    """A delta for several subscriptions applies to the oldest version that any of them has."""
    desk.subscribe("delta_subscribe", None, sub_id="a")
    desk.subscribe("delta_subscribe", None, "no_empties,select=[-/,+/note]", sub_id="b")
    desk.put(1, qty=21, note="x")
    desk.put(1, qty=21, note="y")
    desk.put(1, qty=21, note="z")
    bases = [(message.delta_base, message.version, message.sub_ids) for message in desk.subscriber.take(9)]
    assert bases == [(1, 2, ("a",)), (1, 3, ("a", "b")), (3, 4, ("a", "b"))]


def test_an_oof_is_sent_only_to_subscriptions_that_the_record_left(desk):
    """An `oof` is sent only to the subscriptions whose focus the record left, one message for each reason."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "oof", sub_id="a")
    desk.subscribe("sow_and_subscribe", "/qty > 15", "oof", sub_id="b")
    desk.subscribe("sow_and_subscribe", None, "oof", sub_id="c")
    desk.take_messages()
    desk.put(1, qty=3)
    desk.delete(1)
    assert desk.take_messages() == [
        "oof match {id:1,qty:3} @a,b",
        "publish {id:1,qty:3} @c",
        "oof deleted {id:1,qty:3} @c",
    ]


def test_each_has_its_own_snapshot(desk):
    """Each subscription has its own snapshot at any time; messages carry ids from the second subscription on."""
    desk.subscribe("sow_and_subscribe")
    desk.put(1, qty=21)
    desk.subscribe("sow", None, sub_id="late")
    desk.put(1, qty=22)
    assert desk.take_messages() == [
        "group_begin",
        "sow {id:1,note:x,qty:20}",
        "group_end",
        "publish {id:1,qty:21}",
        "group_begin @late",
        "sow {id:1,qty:21} @late",
        "group_end @late",
        "publish {id:1,qty:22} @1",
    ]


def test_a_subscription_id_is_unique(desk):
    """A subscription id is unique until its subscription ends; subscriptions without one get a free number."""
    first = desk.subscribe("subscribe", sub_id="1")
    with pytest.raises(ConfigurationError, match="there is a subscription '1' on this connection"):
        desk.subscribe("subscribe", sub_id="1")
    assert desk.subscribe("subscribe").sub_id == "2"
    desk.close(first)
    second = desk.subscribe("subscribe", sub_id="1")
    desk.close(first)
    desk.put(1)
    assert desk.take_messages() == ["publish {id:1} @2,1"]
    desk.close(second)


def test_the_id_of_a_snapshot_is_free_once_it_was_taken(desk):
    """The id of a snapshot is free once the snapshot was taken."""
    for _ in range(2):
        desk.subscribe("sow", sub_id="a")
        assert len(desk.take_messages()) == 3


def test_connections_are_independent(desk):
    """Each connection has its own queue and its own subscription ids."""
    other = desk.engine.connect()
    desk.subscribe("subscribe", sub_id="a")
    desk.subscribe("subscribe", sub_id="a", connection=other)
    desk.put(1)
    assert desk.take_messages() == desk.take_messages(other) == ["publish {id:1} @a"]


def test_a_closed_subscription_receives_nothing_more(desk):
    """Closing a subscription drops its messages and snapshot, and takes its name from messages for others."""
    closed = desk.subscribe("sow_and_subscribe", sub_id="a")
    desk.subscribe("subscribe", sub_id="b")
    folded = desk.subscribe("subscribe", None, "conflation=auto", sub_id="c")
    desk.put(1, qty=21)
    desk.subscribe("subscribe", "/qty > 100", sub_id="d")
    desk.close(closed)
    desk.close(folded)
    desk.put(1, qty=22)
    assert desk.take_messages() == ["publish {id:1,qty:21} @b", "publish {id:1,qty:22} @b"]
    assert not desk.subscriber.has_waiting


def test_a_subscription_that_has_ended_can_be_closed(desk):
    """Closing a subscription that failed drops its error, unless another one has its id by now."""
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
    assert desk.take_messages(slow) == ["publish {id:1,n:0} @a"]
    with pytest.raises(SubscriberTooSlow):
        desk.take_messages(slow)


def test_the_first_of_several_can_be_closed(desk):
    """Closing the first of several subscriptions drops its messages, also those without an id, and no others."""
    first = desk.subscribe("subscribe")
    desk.put(1, qty=21)
    second = desk.subscribe("subscribe")
    desk.put(1, qty=22)
    desk.close(first)
    assert desk.take_messages() == ["publish {id:1,qty:22} @2"]
    desk.close(second)
    desk.put(1, qty=23)
    assert desk.take_messages() == []


def test_a_closed_connection_has_nothing(desk):
    """A closed connection receives nothing, and the engine drops its subscriptions."""
    desk.subscribe("sow_and_subscribe", "/qty > 1")
    desk.subscribe("subscribe", None, "conflation=100ms")
    desk.put(1, qty=21)
    desk.subscriber.close()
    desk.put(1, qty=22)
    desk.pass_ms(100)
    assert desk.take_messages() == []
    assert not desk.subscriber.has_waiting
    assert desk.engine.due_ms is None
    assert not desk.engine._routes
    assert len(desk.engine._routes._index) == 0


def test_messages_are_taken_in_pieces(desk):
    """Messages are taken in pieces, each once and in order, also from a snapshot and from folded updates."""
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
    """Write a record that no worker writes."""
    desk.take(desk.record(key, value))


def test_a_record_that_cannot_be_decoded_ends_the_subscriptions(desk):
    """A record that cannot be decoded ends all subscriptions, since any filter may match it."""
    desk.subscribe("subscribe", "/id = 1")
    other = desk.engine.connect()
    desk.subscribe("subscribe", "/symbol = 'X'", connection=other)
    desk.put(1, qty=21)
    break_record(desk, 3)
    desk.put(1, qty=22)
    place = (
        rf"orders: partition 1, offset {desk.offsets[1] - 1} of its SOW topic, key '3', is not what a worker writes: "
    )
    assert desk.take_messages() == ["publish {id:1,qty:21}"]
    with pytest.raises(Stop, match=place):
        desk.take_messages()
    with pytest.raises(Stop, match=place):
        desk.take_messages(other)
    assert desk.take_messages() == desk.take_messages(other) == []
    desk.subscribe("subscribe")
    desk.put(1, qty=23)
    assert desk.take_messages() == ["publish {id:1,qty:23}"]


@pytest.mark.parametrize("options", ["", "conflation=100ms", "conflation=auto"])
def test_a_broken_record_ends_subscriptions_that_would_not_decode_it(desk, options):
    """A record that cannot be decoded ends subscriptions that fold it and do not use its value."""
    desk.subscribe("subscribe", None, options)
    break_record(desk, 3)
    desk.put(3)
    desk.pass_ms(100)
    with pytest.raises(Stop, match=f"partition 1, offset {desk.offsets[1] - 1} of"):
        desk.take_messages()
    assert not desk.subscriber.has_waiting


def test_a_broken_previous_record_ends_a_delta_subscription(desk):
    """A delta whose previous record cannot be decoded ends the subscription with that record's place."""
    break_record(desk, 3)
    offset = desk.offsets[1]
    desk.subscribe("delta_subscribe")
    desk.put(3)
    with pytest.raises(Stop, match=f"partition 1, offset {offset} of"):
        desk.take_messages()


@pytest.mark.parametrize("value", [b"[1]", b"5", b'"x"', b"null"])
@pytest.mark.parametrize("call", ["sow_and_subscribe", "sow_and_delta_subscribe", "delta_subscribe"])
def test_a_value_that_is_no_object_ends_the_subscription(desk, value, call):
    """A value that is no object ends the subscription, since it has no fields to compare or select."""
    desk.subscribe(call, options="select=[-/,+/qty]")
    desk.take_messages()
    break_record(desk, 1, value)
    place = f"partition 1, offset {desk.offsets[1]} of its SOW topic, key '1', is not what a worker writes: not_an_obj"
    with pytest.raises(Stop, match=place):
        desk.take_messages()
    desk.subscribe("sow")
    assert desk.take_messages()[0] == "group_begin"
    with pytest.raises(Stop, match="key '1', is not what a worker writes: not_an_object: a SOW record is an object"):
        desk.take_messages()


def test_a_snapshot_with_a_broken_record_ends_its_subscription(desk):
    """A broken record in a snapshot ends its subscription with offset and key; other subscriptions go on."""
    break_record(desk, 3)
    offset = desk.offsets[1]
    desk.subscribe("sow_and_subscribe", sub_id="a")
    desk.subscribe("subscribe", sub_id="b")
    desk.put(1, qty=21)
    assert desk.take_messages() == ["group_begin @a", "sow {id:1,note:x,qty:20} @a"]
    with pytest.raises(Stop, match=f"orders: offset {offset} of its SOW topic, key '3'"):
        desk.take_messages()
    desk.put(1, qty=22)
    assert desk.take_messages() == ["publish {id:1,qty:21} @b", "publish {id:1,qty:22} @b"]


@pytest.mark.parametrize("options", ["top_n=3", "order_by=/qty"])
def test_an_ordered_subscription_with_a_broken_record_is_refused(desk, options):
    """An ordered subscription is refused at once if a record cannot be decoded, and leaves nothing behind."""
    break_record(desk, 3)
    with pytest.raises(Stop, match="is not what a worker writes"):
        desk.subscribe("sow_and_subscribe", None, options)
    assert not desk.subscriber.has_waiting
    desk.put(1, qty=21)
    assert desk.take_messages() == []


def test_a_third_partys_error_ends_only_that_subscription(desk, functions):
    """A third party's error in a filter ends only its subscription, after earlier messages; others get the update."""
    desk.subscribe("subscribe", "PICKY(/qty) > 10", sub_id="a")
    desk.subscribe("subscribe", "/qty > 10", sub_id="b")
    for qty in (12, 13, 14):
        desk.put(1, qty=qty)
    assert desk.take_messages() == ["publish {id:1,qty:12} @a,b"]
    with pytest.raises(RecordRejected, match=r"plugin_failed.*unlucky"):
        desk.take_messages()
    assert desk.take_messages() == ["publish {id:1,qty:13} @b", "publish {id:1,qty:14} @b"]


def test_a_third_partys_error_in_an_order_ends_only_that_subscription(desk, functions):
    """A third party's error in the order of a window ends only its subscription."""
    desk.subscribe("subscribe", None, "top_n=3,order_by=PICKY(/qty)", sub_id="a")
    desk.subscribe("subscribe", None, sub_id="b")
    desk.put(1, qty=13)
    with pytest.raises(RecordRejected, match="unlucky"):
        desk.take_messages()
    desk.put(1, qty=14)
    assert desk.take_messages() == ["publish {id:1,qty:13} @b", "publish {id:1,qty:14} @b"]


def test_a_third_partys_error_in_a_snapshot_ends_only_that_subscription(desk, functions):
    """A third party's error in a snapshot ends only the snapshot's subscription."""
    desk.put(2, qty=13)
    desk.subscribe("sow_and_subscribe", "PICKY(/qty) > 1", sub_id="a")
    desk.subscribe("subscribe", sub_id="b")
    assert desk.take_messages() == ["group_begin @a", "sow {id:1,note:x,qty:20} @a"]
    with pytest.raises(RecordRejected, match="unlucky"):
        desk.take_messages()
    desk.put(1, qty=3)
    assert desk.take_messages() == ["publish {id:1,qty:3} @b"]


class Forgetful(MemoryRecords):
    """A view whose disk fails."""

    fails = False

    def scan(self):
        """Yield some records, and raise after the first one if the view fails."""
        for record in super().scan():
            yield record
            if self.fails:
                raise Stop("the disk is gone")


def test_a_view_that_fails_ends_the_snapshot():
    """A failing view ends a snapshot that is being taken, after the part that was sent."""
    view = Forgetful()
    desk = Desk(view=view)
    for key in range(3):
        desk.put(key)
    desk.subscribe("sow")
    assert len(desk.subscriber.take(2)) == 2
    view.fails = True
    with pytest.raises(Stop, match="the disk is gone"):
        desk.take_messages()
    assert not desk.subscriber.has_waiting


@pytest.mark.parametrize("pace", ["auto", "100ms"])
def test_a_failing_release_ends_only_its_subscription(monkeypatch, pace):
    """A failing release of folded updates ends only its subscription; the other one's updates are delivered."""
    desk = Desk()
    for sub_id in ("a", "b"):
        desk.subscribe("subscribe", None, f"conflation={pace}", sub_id=sub_id)
    desk.put(1)
    desk.put(2)

    def release():
        raise Stop("no")

    monkeypatch.setattr(desk.subscriber._subscriptions["a"], "release", release)
    desk.pass_ms(100)
    messages, errors = [], []
    while desk.subscriber.has_waiting:
        try:
            messages += desk.take_messages()
        except Stop as error:
            errors.append(str(error))
    assert errors == ["no"]
    assert messages == ["publish {id:1} @b", "publish {id:2} @b"]
    desk.put(1, n=1)
    desk.pass_ms(100)
    assert desk.take_messages() == ["publish {id:1,n:1} @b"]


@pytest.mark.parametrize(
    ("options", "part", "call"),
    [
        (None, None, "matches"),
        (None, "", "changes"),
        (None, "builder", "full"),
        ("top_n=3", "focus", "place"),
        ("projection=[COUNT(*) AS /n]", "grouping", "write"),
        ("conflation=auto", "", "release"),
        ("conflation=100ms", "", "release"),
    ],
)
def test_an_internal_error_ends_only_its_subscription(monkeypatch, caplog, options, part, call):
    """An error that is not of this project ends its subscription, and is in the log; others get the same update."""
    desk = Desk()
    failing = desk.subscribe("subscribe", "/n > 0", options, sub_id="a")
    desk.subscribe("subscribe", "/n >= 1", "conflation=100ms", sub_id="b")
    other = desk.engine.connect()
    for sub_id in "cd":
        desk.subscribe("subscribe", sub_id=sub_id, connection=other)

    def fail(*_, **__):
        raise KeyError("a value of a record")

    if part is None:
        matches = Update.matches
        monkeypatch.setattr(Update, call, lambda *of: (fail if of[1] is failing.filter else matches)(*of))
    else:
        monkeypatch.setattr(getattr(failing, part) if part else failing, call, fail)
    desk.put(1, n=1)
    desk.pass_ms(100)
    messages, errors = [], []
    while desk.subscriber.has_waiting:
        try:
            messages += desk.take_messages()
        except SubscriptionFailed as error:
            errors.append(str(error))
    assert errors == ["orders: an internal error, KeyError; the log has the details"]
    assert "a value of a record" in caplog.text
    assert messages == ["publish {id:1,n:1} @b"]
    desk.put(1, n=2)
    assert desk.take_messages(other) == ["publish {id:1,n:1} @c,d", "publish {id:1,n:2} @c,d"]


def test_a_message_for_several_that_cannot_be_made_ends_these(desk, monkeypatch):
    """A message that a connection's subscriptions share ends these if it fails; other connections get the update."""
    others = [desk.engine.connect() for _ in range(2)]
    for connection in (others[0], desk.subscriber, others[1]):
        for sub_id, select in (("a", "-/,+/qty"), ("b", "-/,+/note")):
            desk.subscribe("subscribe", None, f"select=[{select}]", sub_id=sub_id, connection=connection)
    united, calls = desk.engine._sharing._message, []

    def fail_second(group):
        calls.append(group)
        if len(calls) == 2:
            raise TypeError("no")
        return united(group)

    monkeypatch.setattr(desk.engine._sharing, "_message", fail_second)
    desk.put(1, qty=21, note="y")
    for _ in "ab":
        with pytest.raises(SubscriptionFailed):
            desk.take_messages()
    assert not desk.subscriber.has_waiting
    for connection in others:
        assert desk.take_messages(connection) == ["publish {id:1,note:y,qty:21} @a,b"]


def test_a_subscriber_too_slow_in_its_snapshot_gets_the_error_after_it(desk):
    """A subscriber that is too slow during its snapshot gets the error after the end of the snapshot."""
    slow = desk.engine.connect(queue_max=1)
    desk.subscribe("sow_and_subscribe", None, "conflation=none", connection=slow)
    desk.put(1, qty=21)
    assert desk.take_messages(slow) == ["group_begin", "sow {id:1,note:x,qty:20}", "group_end"]
    with pytest.raises(SubscriberTooSlow):
        desk.take_messages(slow)


def test_a_request_may_be_used_again(desk):
    """A request can be used for several subscriptions."""
    how = CALLS["sow_and_subscribe"]
    request = SubscriptionSpec(desk.topic, "/qty > 10", parse_options("", **how), **how)
    for _ in range(2):
        desk.subscriber.subscribe(request)
    assert desk.take_messages()[2:] == ["group_end", "group_begin @2", "sow {id:1,note:x,qty:20} @2", "group_end @2"]


def test_many_filters_are_not_evaluated_one_by_one(monkeypatch):
    """Of many subscriptions to one value each, only the matching one evaluates its filter for an update."""
    from processor.subscriptions.request.update import Update

    desk = Desk()
    for n in range(1000):
        desk.subscribe("subscribe", f"/symbol = 'X{n}'", sub_id=str(n))
    asked = []
    focus = Update.matches
    monkeypatch.setattr(Update, "matches", lambda change, text: asked.append(text) or focus(change, text))
    desk.put(1, symbol="X7")
    desk.put(1, symbol="X8")
    assert desk.take_messages() == ["publish {id:1,symbol:X7} @7", "publish {id:1,symbol:X8} @8"]
    assert len(asked) == 3


@pytest.mark.parametrize("options", ["", "conflation=100ms", "top_n=2,order_by=/qty"])
def test_changes_to_a_message_do_not_reach_later_messages(desk, options):
    """A subscriber's changes to its messages do not change later messages or the engine's records."""
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
    assert desk.take_messages(late) == ["group_begin", "sow {id:1,note:x,qty:22}", "group_end"]
