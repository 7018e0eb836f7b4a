"""Records that leave a subscription, and deltas of the touched fields."""

import json

import pytest

from processor.errors import ConfigurationError, Stop
from processor.subscriptions import Message
from tests.subscriptions.desk import Desk


@pytest.fixture
def desk():
    """A desk with an order that matches `/qty > 10`."""
    desk = Desk()
    desk.put(1, qty=20)
    return desk


@pytest.mark.parametrize("call", ["sow_and_subscribe", "sow_and_delta_subscribe"])
def test_a_record_that_no_longer_matches_is_sent_in_its_new_state(desk, call):
    """A record that no longer matches is sent as `oof match` with its new state and the version of the update."""
    desk.subscribe(call, "/qty > 10", "oof")
    desk.take_messages()
    desk.put(1, qty=3)
    [message] = desk.subscriber.take(9)
    assert (message.command, message.reason, message.data, message.version) == ("oof", "match", {"id": 1, "qty": 3}, 2)


@pytest.mark.parametrize(("kind", "reason"), [(b"delete", "deleted"), (b"expire", "expired")])
def test_a_deleted_record_is_sent_in_its_last_state(desk, kind, reason):
    """A deleted or expired record is sent as `oof` with its last state and the reason."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "oof")
    desk.take_messages()
    desk.delete(1, kind)
    [message] = desk.subscriber.take(9)
    assert (message.command, message.reason, message.data, message.version) == ("oof", reason, {"id": 1, "qty": 20}, 2)


def test_without_the_option_no_oof_is_sent(desk):
    """Without the option `oof` neither a change nor a delete out of focus sends a message."""
    desk.put(2, qty=20)
    desk.subscribe("sow_and_subscribe", "/qty > 10")
    desk.take_messages()
    desk.put(1, qty=3)
    desk.delete(2)
    assert not desk.subscriber.has_waiting


@pytest.mark.parametrize("options", ["oof", ""])
@pytest.mark.parametrize("call", ["sow_and_delta_subscribe", "delta_subscribe"])
def test_a_record_that_comes_back_into_focus_is_full(desk, call, options):
    """A record that comes back into focus is sent in full, also on a delta subscription and with or without `oof`."""
    desk.subscribe(call, "/qty > 10", options)
    desk.take_messages()
    desk.put(1, qty=3, note="x")
    desk.put(1, qty=30, note="x")
    desk.put(1, qty=31, note="x")
    assert desk.take_messages()[-2:] == ["publish {id:1,note:x,qty:30}", "delta {id:1,qty:31}"]


def test_a_deleted_record_that_is_published_again_is_full(desk):
    """A record that was deleted and published again is sent in full."""
    desk.subscribe("sow_and_delta_subscribe", None, "oof")
    desk.take_messages()
    desk.delete(1)
    desk.put(1, qty=20)
    assert desk.take_messages() == ["oof deleted {id:1,qty:20}", "publish {id:1,qty:20}"]


@pytest.mark.parametrize("call", ["subscribe", "delta_subscribe"])
def test_a_record_that_was_never_received_sends_no_oof(desk, call):
    """A record that the subscriber never received sends no `oof`; without a snapshot, one without updates."""
    desk.put(2, qty=20)
    desk.subscribe(call, "/qty > 10", "oof")
    desk.put(1, qty=3)
    desk.delete(2)
    assert desk.take_messages() == []
    desk.put(1, qty=30)
    desk.delete(1)
    assert desk.take_messages() == ["publish {id:1,qty:30}", "oof deleted {id:1,qty:30}"]


def test_a_record_received_as_a_delta_sends_an_oof(desk):
    """A record that was received only as a delta sends an `oof` when it leaves."""
    desk.subscribe("delta_subscribe", "/qty > 10", "oof")
    desk.put(1, qty=21)
    desk.put(1, qty=3)
    assert desk.take_messages() == ["delta {id:1,qty:21}", "oof match {id:1,qty:3}"]


@pytest.mark.parametrize("pace", ["", ",conflation=100ms", ",conflation=auto", ",top_n=9"])
def test_a_record_whose_updates_sent_no_message_sends_no_oof(desk, pace):
    """Under `no_empties` a record whose updates sent no message was not received, and sends no `oof`."""
    desk.subscribe("delta_subscribe", "/qty > 10", f"oof,no_empties{pace}")
    for _ in range(2):
        desk.put(1, qty=20)
        desk.pass_ms(100)
        assert desk.take_messages() == []
    desk.put(1, qty=3)
    desk.pass_ms(100)
    assert desk.take_messages() == []
    desk.put(1, qty=30)
    desk.pass_ms(100)
    desk.take_messages()
    desk.put(1, qty=30)
    desk.put(1, qty=3)
    desk.pass_ms(100)
    assert [line[:3] for line in desk.take_messages()] == ["oof"]


@pytest.mark.parametrize("pace", ["", ",conflation=100ms"])
def test_a_record_sent_after_an_empty_update_sends_an_oof(desk, pace):
    """Under `no_empties` a record that was sent after an empty update sends an `oof` when it leaves."""
    desk.subscribe("delta_subscribe", "/qty > 10", f"oof,no_empties{pace}")
    messages = []
    for qty in (20, 21, 3):
        desk.put(1, qty=qty)
        desk.pass_ms(100)
        messages += desk.take_messages()
    assert [line[:5] for line in messages] == ["delta", "oof m"]


def test_a_filter_that_moves_with_the_clock_has_no_oof():
    """A filter that changes with the clock is refused with `oof`, since a record can leave without an update."""
    with pytest.raises(ConfigurationError, match="changes with the clock"):
        Desk().subscribe("subscribe", "/at > UNIX_TIMESTAMP()", "oof")


def test_a_filter_that_moves_with_the_clock_is_compared_with_sent_messages(functions):
    """A filter that changes with the clock is compared with the messages sent, not with its present answers."""
    desk = Desk()
    desk.put(1, at=1)
    desk.subscribe("sow_and_delta_subscribe", "/at >= TICK()", "no_empties")
    desk.take_messages()
    functions.Clock.now = 5
    desk.put(1, at=5)  # The old record does not match now, but was sent.
    assert desk.take_messages() == ["delta {at:5,id:1}"]
    functions.Clock.now = 9
    desk.put(1, at=6)  # Neither record matches now: no message is sent.
    desk.put(1, at=9)
    assert desk.take_messages() == ["publish {at:9,id:1}"]
    desk.delete(1)
    desk.put(1, at=9)
    assert desk.take_messages() == ["publish {at:9,id:1}"]


def test_a_record_that_matches_by_the_clock_alone_is_sent_in_full(functions):
    """A record that matches because of the clock alone is sent in full at its next update."""
    desk = Desk()
    desk.put(1, until=3)
    desk.subscribe("sow_and_delta_subscribe", "/until <= TICK()")
    desk.take_messages()
    functions.Clock.now = 5
    desk.put(1, until=4)
    assert desk.take_messages() == ["publish {id:1,until:4}"]


def test_a_worker_passes_an_order_on():
    """The example of subscribe.md works: two workers add their fields, and a third one gets the complete order."""
    desk = Desk()
    waits = "/state = 'new' AND /inventory IS NULL AND /credit IS NULL"
    inventory, credit, fulfilment = (desk.engine.connect() for _ in range(3))
    desk.subscribe("sow_and_delta_subscribe", waits, "oof", connection=inventory)
    desk.subscribe("sow_and_delta_subscribe", waits, "oof", connection=credit)
    ready = "/state = 'new' AND /inventory IS NOT NULL AND /credit IS NOT NULL"
    desk.subscribe("sow_and_delta_subscribe", ready, "oof", connection=fulfilment)
    for worker in (inventory, credit, fulfilment):
        assert desk.take_messages(worker) == ["group_begin", "group_end"]
    desk.put(7, state="new")
    assert desk.take_messages(inventory) == desk.take_messages(credit) == ["publish {id:7,state:new}"]
    desk.put(7, state="new", inventory=1)
    assert desk.take_messages(inventory) == desk.take_messages(credit) == ["oof match {id:7,inventory:1,state:new}"]
    assert desk.take_messages(fulfilment) == []
    desk.put(7, state="new", inventory=1, credit=2)
    assert desk.take_messages(fulfilment) == ["publish {credit:2,id:7,inventory:1,state:new}"]
    assert desk.take_messages(inventory) == desk.take_messages(credit) == []


def test_each_field_of_a_message_is_kept_or_hidden_when_a_right_ends():
    """An `oof` for a right that ended has some fields of the message before; each other field is hidden."""
    kept = {"topic", "sow_key", "version", "timestamp", "sub_ids", "bookmark"}
    replaced = {"command": "oof", "data": {"id": 1}, "reason": "entitlement"}
    hidden = {
        "delta",
        "correlation_id",
        "removed",
        "headers",
        "conflated",
        "first_timestamp",
        "delta_base",
        "expires_at",
    }
    assert sorted(Message._fields) == sorted([*kept, *replaced, *hidden]), "decide whether the new field may be seen"
    full = Message(*(f"the {name}" for name in Message._fields))
    left = full.without_record({"id": 1})._asdict()
    defaults = Message._field_defaults
    assert left == {name: f"the {name}" for name in kept} | replaced | {name: defaults[name] for name in hidden}


RECORD = {"id": 7, "state": "open", "note": "-", "ref": 1}


@pytest.fixture
def touched_desk():
    """A desk with one record."""
    desk = Desk()
    desk.take(desk.record(7, json.dumps(RECORD).encode()))
    return desk


def put_touched(desk, *pointers, **fields):
    """Write the next SOW record of the key, with paths that changed and changed back in the interval."""
    touched = json.dumps(pointers).encode()
    desk.take(desk.record(7, json.dumps(RECORD | fields).encode(), touched=touched))


@pytest.mark.parametrize("call", ["delta_subscribe", "sow_and_delta_subscribe"])
@pytest.mark.parametrize("options", ["", "no_empties", "oof", "no_empties,oof"])
@pytest.mark.parametrize("filter_text", [None, "/id = 7"])
def test_values_that_changed_back_are_delivered(touched_desk, call, options, filter_text):
    """Values that changed back are delivered under all options, as in the example of conflation.md."""
    touched_desk.subscribe(call, filter_text, options)
    touched_desk.take_messages()
    put_touched(touched_desk, "/state", "/note")
    assert touched_desk.take_messages() == ["delta {id:7,note:-,state:open}"]
    put_touched(touched_desk, "/state", ref=2)
    assert touched_desk.take_messages() == ["delta {id:7,ref:2,state:open}"]


@pytest.mark.parametrize(
    ("select", "delta"), [("-/,+/note", ["delta {id:7,note:-}"]), ("-/state,-/note", []), ("-/ref", None)]
)
def test_only_selected_paths_that_changed_back_are_delivered(touched_desk, select, delta):
    """With `select` a delta has the selected touched paths; with `no_empties` none of them means no message."""
    touched_desk.subscribe("sow_and_delta_subscribe", None, f"no_empties,select=[{select}]")
    touched_desk.take_messages()
    put_touched(touched_desk, "/state", "/note")
    assert touched_desk.take_messages() == (["delta {id:7,note:-,state:open}"] if delta is None else delta)


def test_updates_that_are_conflated_again_keep_their_touched_paths(touched_desk):
    """A subscription's own conflation delivers the paths touched by any of the updates that it folds."""
    touched_desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    touched_desk.take_messages()
    put_touched(touched_desk, "/state")
    put_touched(touched_desk, "/note", ref=2)
    touched_desk.pass_ms(100)
    assert touched_desk.take_messages() == ["delta {id:7,note:-,ref:2,state:open}"]


def test_a_record_that_comes_into_focus_is_full(touched_desk):
    """A record that comes into focus is sent in full, to which touched paths add nothing."""
    touched_desk.subscribe("delta_subscribe", "/ref = 2")
    put_touched(touched_desk, "/state", ref=2)
    assert touched_desk.take_messages() == ["publish {id:7,note:-,ref:2,state:open}"]


def test_a_header_that_no_worker_writes_ends_the_subscription(touched_desk):
    """A `touched` header that no worker writes ends the subscription with the record's place."""
    touched_desk.subscribe("delta_subscribe")
    touched_desk.take(touched_desk.record(7, json.dumps(RECORD).encode(), touched=b"[1]"))
    with pytest.raises(Stop, match=r"orders: partition 1, offset 102 .* is not what a worker writes: .*touched is"):
        touched_desk.take_messages()
