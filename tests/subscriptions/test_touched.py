"""The header `touched` of a SOW record is part of each delta of a conflated topic that is computed from it."""

import json

import pytest

from processor.errors import Stop
from tests.subscriptions.desk import Desk

RECORD = {"id": 7, "state": "open", "note": "-", "ref": 1}


@pytest.fixture
def desk():
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
def test_values_that_changed_back_are_delivered(desk, call, options, filter_text):
    """Values that changed back are delivered under all options, as in the example of conflation.md."""
    desk.subscribe(call, filter_text, options)
    desk.take_messages()
    put_touched(desk, "/state", "/note")
    assert desk.take_messages() == ["delta {id:7,note:-,state:open}"]
    put_touched(desk, "/state", ref=2)
    assert desk.take_messages() == ["delta {id:7,ref:2,state:open}"]


@pytest.mark.parametrize(
    ("select", "delta"), [("-/,+/note", ["delta {id:7,note:-}"]), ("-/state,-/note", []), ("-/ref", None)]
)
def test_only_selected_paths_that_changed_back_are_delivered(desk, select, delta):
    """With `select` a delta has the selected touched paths; with `no_empties` none of them means no message."""
    desk.subscribe("sow_and_delta_subscribe", None, f"no_empties,select=[{select}]")
    desk.take_messages()
    put_touched(desk, "/state", "/note")
    assert desk.take_messages() == (["delta {id:7,note:-,state:open}"] if delta is None else delta)


def test_updates_that_are_conflated_again_keep_their_touched_paths(desk):
    """A subscription's own conflation delivers the paths touched by any of the updates that it folds."""
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    desk.take_messages()
    put_touched(desk, "/state")
    put_touched(desk, "/note", ref=2)
    desk.pass_ms(100)
    assert desk.take_messages() == ["delta {id:7,note:-,ref:2,state:open}"]


def test_a_record_that_comes_into_focus_is_full(desk):
    """A record that comes into focus is sent in full, to which touched paths add nothing."""
    desk.subscribe("delta_subscribe", "/ref = 2")
    put_touched(desk, "/state", ref=2)
    assert desk.take_messages() == ["publish {id:7,note:-,ref:2,state:open}"]


def test_a_header_that_no_worker_writes_ends_the_subscription(desk):
    """A `touched` header that no worker writes ends the subscription with the record's place."""
    desk.subscribe("delta_subscribe")
    desk.take(desk.record(7, json.dumps(RECORD).encode(), touched=b"[1]"))
    with pytest.raises(Stop, match=r"orders: partition 1, offset 102 .* is not what a worker writes: .*touched is"):
        desk.take_messages()
