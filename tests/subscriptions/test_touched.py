"""Deltas of a conflated topic: the header `touched` of a SOW record is part of each delta that is computed from it."""

import json

import pytest

from processor.errors import Stop
from tests.subscriptions.desk import Desk

RECORD = {"id": 7, "state": "open", "note": "-", "ref": 1}


@pytest.fixture
def desk():
    """One record is there."""
    desk = Desk()
    desk.take(desk.record(7, json.dumps(RECORD).encode()))
    return desk


def came_back(desk, *pointers, **fields):
    """The next SOW record of the key: some paths moved in the interval and came back."""
    touched = json.dumps(pointers).encode()
    desk.take(desk.record(7, json.dumps(RECORD | fields).encode(), touched=touched))


@pytest.mark.parametrize("call", ["delta_subscribe", "sow_and_delta_subscribe"])
@pytest.mark.parametrize("options", ["", "no_empties", "oof", "no_empties,oof"])
@pytest.mark.parametrize("filter_text", [None, "/id = 7"])
def test_values_that_came_back_are_delivered(desk, call, options, filter_text):
    """The example of conflation.md: state and note moved and came back, ref did not, whatever the options."""
    desk.subscribe(call, filter_text, options)
    desk.heard()
    came_back(desk, "/state", "/note")
    assert desk.heard() == ["delta {id:7,note:-,state:open}"]
    came_back(desk, "/state", ref=2)
    assert desk.heard() == ["delta {id:7,ref:2,state:open}"]


@pytest.mark.parametrize(
    ("select", "delta"), [("-/,+/note", ["delta {id:7,note:-}"]), ("-/state,-/note", []), ("-/ref", None)]
)
def test_only_selected_paths_that_came_back_are_delivered(desk, select, delta):
    """With `select` a delta has what was touched and is selected; with `no_empties` nothing of it is no message."""
    desk.subscribe("sow_and_delta_subscribe", None, f"no_empties,select=[{select}]")
    desk.heard()
    came_back(desk, "/state", "/note")
    assert desk.heard() == (["delta {id:7,note:-,state:open}"] if delta is None else delta)


def test_updates_that_are_conflated_again_keep_what_was_touched(desk):
    """A subscription's own conflation delivers the paths touched by any of the updates that it folds."""
    desk.subscribe("sow_and_delta_subscribe", None, "conflation=100ms")
    desk.heard()
    came_back(desk, "/state")
    came_back(desk, "/note", ref=2)
    desk.pass_ms(100)
    assert desk.heard() == ["delta {id:7,note:-,ref:2,state:open}"]


def test_a_record_that_comes_into_focus_is_whole(desk):
    """Touched paths add nothing to a full record."""
    desk.subscribe("delta_subscribe", "/ref = 2")
    came_back(desk, "/state", ref=2)
    assert desk.heard() == ["publish {id:7,note:-,ref:2,state:open}"]


def test_a_header_that_no_worker_writes_ends_the_subscription(desk):
    """The error names the record's place and the header."""
    desk.subscribe("delta_subscribe")
    desk.take(desk.record(7, json.dumps(RECORD).encode(), touched=b"[1]"))
    with pytest.raises(Stop, match=r"orders: partition 1, offset 102 .* is not what a worker writes: .*touched is"):
        desk.heard()
