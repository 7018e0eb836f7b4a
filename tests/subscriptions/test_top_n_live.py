"""Paged windows (`top_n`, `skip_n`, `order_by`) that move with the updates."""

import pytest

from tests.subscriptions.desk import Desk


@pytest.fixture
def desk():
    """Four orders by price: 4, 3, 2, 1."""
    desk = Desk()
    for key, px in enumerate((10, 20, 30, 40), 1):
        desk.put(key, px=px)
    return desk


TOP_TWO = "top_n=2,order_by=[/px DESC],oof"


def test_the_snapshot_is_the_window_in_order(desk):
    """The first `top_n` behind `skip_n`."""
    desk.subscribe("sow", None, "top_n=2,skip_n=1,order_by=[/px DESC]")
    assert desk.heard() == ["group_begin", "sow {id:3,px:30}", "sow {id:2,px:20}", "group_end"]


def test_without_an_order_it_goes_by_key(desk):
    """So pages of one topic never overlap."""
    desk.subscribe("sow", "/px > 10", "skip_n=1")
    assert desk.heard() == ["group_begin", "sow {id:3,px:30}", "sow {id:4,px:40}", "group_end"]


def test_who_comes_in_pushes_somebody_out(desk):
    """First the `oof` of who is pushed out, reason `match`, with its record as it is; then who comes in, whole."""
    desk.subscribe("sow_and_delta_subscribe", None, TOP_TWO)
    desk.heard()
    desk.put(1, px=50)
    assert desk.heard() == ["oof match {id:3,px:30}", "publish {id:1,px:50}"]


@pytest.mark.parametrize("end", [lambda desk: desk.delete(4), lambda desk: desk.put(4, px=50, gone=1)])
def test_who_leaves_lets_somebody_in(desk, end):
    """Whole, on a delta subscription too."""
    desk.subscribe("sow_and_delta_subscribe", "/gone IS NULL", TOP_TWO)
    desk.heard()
    end(desk)
    told = desk.heard()
    assert told[0].startswith("oof")
    assert told[1:] == ["publish {id:2,px:20}"]


def test_a_record_that_falls_out_is_told_as_it_is_now(desk):
    """It leaves by its own update."""
    desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    desk.heard()
    desk.put(4, px=5)
    assert desk.heard() == ["oof match {id:4,px:5}", "publish {id:2,px:20}"]


def test_a_record_that_stays_is_told_what_changed(desk):
    """Whether its place in the window changes or not."""
    desk.subscribe("sow_and_delta_subscribe", None, TOP_TWO)
    desk.heard()
    desk.put(3, px=35)
    desk.put(3, px=45)
    assert desk.heard() == ["delta {id:3,px:35}", "delta {id:3,px:45}"]


def test_what_is_outside_is_not_told(desk):
    """Updates, new records and deletes behind the window."""
    desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    desk.heard()
    desk.put(1, px=11)
    desk.put(5, px=1)
    desk.delete(2)
    assert not desk.subscriber.has_waiting


def test_what_is_before_the_window_moves_it(desk):
    """A record in the first `skip_n` that goes takes one of the window with it, and another one comes in."""
    desk.subscribe("sow_and_delta_subscribe", None, "skip_n=1,top_n=2,order_by=[/px DESC],oof")
    assert desk.heard()[1:3] == ["sow {id:3,px:30}", "sow {id:2,px:20}"]
    desk.delete(4)
    assert desk.heard() == ["oof match {id:3,px:30}", "publish {id:1,px:10}"]
    desk.put(5, px=99)
    assert desk.heard() == ["oof match {id:1,px:10}", "publish {id:3,px:30}"]


def test_updates_of_a_batch_move_it_one_by_one():
    """Who is let in or pushed out is told as it was at that update, though a later one is in the view by then."""
    desk = Desk(partitions=1)
    desk.put(1, px=10)
    desk.put(2, px=20)
    desk.subscribe("sow_and_subscribe", None, "top_n=1,order_by=[/px DESC],oof")
    desk.heard()
    desk.take(desk.record(1, b'{"id":1,"px":30}'), desk.record(2, b'{"id":2,"px":25}'), desk.record(1, None))
    assert desk.heard() == [
        "oof match {id:2,px:20}",
        "publish {id:1,px:30}",
        "oof deleted {id:1,px:30}",
        "publish {id:2,px:25}",
    ]


def test_a_window_without_a_snapshot_is_supposed_to_be_known(desk):
    """Deltas of what was in it, no `oof` of what was never told."""
    desk.subscribe("delta_subscribe", None, TOP_TWO)
    desk.put(4, px=41)
    desk.put(5, px=60)
    desk.put(6, px=70)
    assert desk.heard() == [
        "delta {id:4,px:41}",
        "publish {id:5,px:60}",
        "oof match {id:4,px:41}",
        "publish {id:6,px:70}",
    ]


def test_a_window_is_conflated_by_key(desk):
    """What was pushed out and came back in one interval is told once; what only passed through not at all."""
    desk.subscribe("sow_and_subscribe", None, f"{TOP_TWO},conflation=100ms")
    desk.heard()
    desk.put(1, px=50)
    desk.put(1, px=10)
    desk.pass_ms(100)
    assert desk.heard() == ["publish {id:3,px:30}"]
    desk.put(1, px=50)
    desk.pass_ms(100)
    assert desk.heard() == ["oof match {id:3,px:30}", "publish {id:1,px:50}"]


def test_a_record_leaves_the_window_it_was_in(functions):
    """Though its filter says today that neither the record before nor the one now matches."""
    desk = Desk()
    desk.put(1, at=1)
    desk.subscribe("sow_and_delta_subscribe", "/at >= TICK()", "top_n=9")
    desk.heard()
    functions.Clock.now = 5
    desk.put(1, at=2)
    desk.put(1, at=5)
    assert desk.heard() == ["publish {at:5,id:1}"]


def test_windows_that_leave_the_key_out_are_told_apart(desk):
    """One update lets different records into two windows of a connection: two messages."""
    for sub_id, skip_n in (("a", 0), ("b", 1)):
        options = f"no_sowkey,skip_n={skip_n},top_n=1,order_by=[/px DESC]"
        desk.subscribe("sow_and_delta_subscribe", None, options, sub_id=sub_id)
    desk.heard()
    desk.put(5, px=99)
    assert desk.heard() == ["publish {id:5,px:99} @a", "publish {id:4,px:40} @b"]


def test_what_is_gone_is_forgotten():
    """Of keys that came and went a window remembers nothing."""
    desk = Desk()
    subscription = desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    for key in range(50):
        desk.put(key, px=key)
    for key in range(50):
        desk.delete(key)
    desk.heard()
    focus = subscription.focus
    assert not focus._received
    assert not focus._top_n._sort_keys
