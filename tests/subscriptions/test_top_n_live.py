"""Paged windows (`top_n`, `skip_n`, `order_by`) move with the updates."""

import pytest

from tests.subscriptions.desk import Desk


@pytest.fixture
def desk():
    """A desk with four orders, by falling price 4, 3, 2, 1."""
    desk = Desk()
    for key, px in enumerate((10, 20, 30, 40), 1):
        desk.put(key, px=px)
    return desk


TOP_TWO = "top_n=2,order_by=[/px DESC],oof"


def test_the_snapshot_is_the_window_in_order(desk):
    """The snapshot of a window has the first `top_n` records after `skip_n`, in order."""
    desk.subscribe("sow", None, "top_n=2,skip_n=1,order_by=[/px DESC]")
    assert desk.take_messages() == ["group_begin", "sow {id:3,px:30}", "sow {id:2,px:20}", "group_end"]


def test_without_an_order_it_goes_by_key(desk):
    """A window without an order goes by key, so pages of one topic never overlap."""
    desk.subscribe("sow", "/px > 10", "skip_n=1")
    assert desk.take_messages() == ["group_begin", "sow {id:3,px:30}", "sow {id:4,px:40}", "group_end"]


def test_a_record_that_enters_pushes_another_one_out(desk):
    """A record that enters pushes another one out: first its `oof match`, then the new record in full."""
    desk.subscribe("sow_and_delta_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(1, px=50)
    assert desk.take_messages() == ["oof match {id:3,px:30}", "publish {id:1,px:50}"]


@pytest.mark.parametrize("end", [lambda desk: desk.delete(4), lambda desk: desk.put(4, px=50, gone=1)])
def test_a_record_that_leaves_lets_another_one_in(desk, end):
    """When a record leaves the window, the one that enters is sent in full, also on a delta subscription."""
    desk.subscribe("sow_and_delta_subscribe", "/gone IS NULL", TOP_TWO)
    desk.take_messages()
    end(desk)
    messages = desk.take_messages()
    assert messages[0].startswith("oof")
    assert messages[1:] == ["publish {id:2,px:20}"]


def test_a_record_that_leaves_by_its_update_is_sent_in_its_new_state(desk):
    """A record that leaves the window by its own update is sent as `oof` in its new state."""
    desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(4, px=5)
    assert desk.take_messages() == ["oof match {id:4,px:5}", "publish {id:2,px:20}"]


def test_a_record_that_stays_is_sent_as_a_delta(desk):
    """A record that stays in the window is sent as a delta, at the same or another place."""
    desk.subscribe("sow_and_delta_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(3, px=35)
    desk.put(3, px=45)
    assert desk.take_messages() == ["delta {id:3,px:35}", "delta {id:3,px:45}"]


def test_changes_outside_the_window_send_no_message(desk):
    """Updates, new records and deletes outside the window send no message."""
    desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(1, px=11)
    desk.put(5, px=1)
    desk.delete(2)
    assert not desk.subscriber.has_waiting


def test_a_change_before_the_window_moves_it(desk):
    """A change among the first `skip_n` records moves one record out of the window and another one in."""
    desk.subscribe("sow_and_delta_subscribe", None, "skip_n=1,top_n=2,order_by=[/px DESC],oof")
    assert desk.take_messages()[1:3] == ["sow {id:3,px:30}", "sow {id:2,px:20}"]
    desk.delete(4)
    assert desk.take_messages() == ["oof match {id:3,px:30}", "publish {id:1,px:10}"]
    desk.put(5, px=99)
    assert desk.take_messages() == ["oof match {id:1,px:10}", "publish {id:3,px:30}"]


def test_updates_of_a_batch_move_the_window_one_by_one():
    """Updates of a batch move the window one by one, with the records as they were at each update."""
    desk = Desk(partitions=1)
    desk.put(1, px=10)
    desk.put(2, px=20)
    desk.subscribe("sow_and_subscribe", None, "top_n=1,order_by=[/px DESC],oof")
    desk.take_messages()
    desk.take(desk.record(1, b'{"id":1,"px":30}'), desk.record(2, b'{"id":2,"px":25}'), desk.record(1, None))
    assert desk.take_messages() == [
        "oof match {id:2,px:20}",
        "publish {id:1,px:30}",
        "oof deleted {id:1,px:30}",
        "publish {id:2,px:25}",
    ]


def test_a_window_without_a_snapshot_sends_deltas(desk):
    """A window without a snapshot sends deltas of its first records, and no `oof` of a record that was never sent."""
    desk.subscribe("delta_subscribe", None, TOP_TWO)
    desk.put(4, px=41)
    desk.put(5, px=60)
    desk.put(6, px=70)
    assert desk.take_messages() == [
        "delta {id:4,px:41}",
        "publish {id:5,px:60}",
        "oof match {id:4,px:41}",
        "publish {id:6,px:70}",
    ]


def test_a_window_is_conflated_by_key(desk):
    """A record that left and returned within an interval is sent once, and one that only passed through is not sent."""
    desk.subscribe("sow_and_subscribe", None, f"{TOP_TWO},conflation=100ms")
    desk.take_messages()
    desk.put(1, px=50)
    desk.put(1, px=10)
    desk.pass_ms(100)
    assert desk.take_messages() == ["publish {id:3,px:30}"]
    desk.put(1, px=50)
    desk.pass_ms(100)
    assert desk.take_messages() == ["oof match {id:3,px:30}", "publish {id:1,px:50}"]


def test_a_record_leaves_the_window_it_was_in(functions):
    """A record leaves the window that it was in, even if its filter now matches neither its old nor its new state."""
    desk = Desk()
    desk.put(1, at=1)
    desk.subscribe("sow_and_delta_subscribe", "/at >= TICK()", "top_n=9")
    desk.take_messages()
    functions.Clock.now = 5
    desk.put(1, at=2)
    desk.put(1, at=5)
    assert desk.take_messages() == ["publish {at:5,id:1}"]


def test_windows_without_keys_get_separate_messages(desk):
    """An update that lets different records into two windows without keys sends two messages."""
    for sub_id, skip_n in (("a", 0), ("b", 1)):
        options = f"no_sowkey,skip_n={skip_n},top_n=1,order_by=[/px DESC]"
        desk.subscribe("sow_and_delta_subscribe", None, options, sub_id=sub_id)
    desk.take_messages()
    desk.put(5, px=99)
    assert desk.take_messages() == ["publish {id:5,px:99} @a", "publish {id:4,px:40} @b"]


def test_a_window_keeps_nothing_of_deleted_keys():
    """A window keeps nothing of deleted keys."""
    desk = Desk()
    subscription = desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    for key in range(50):
        desk.put(key, px=key)
    for key in range(50):
        desk.delete(key)
    desk.take_messages()
    focus = subscription.focus
    assert not focus._received
    assert not focus.window.places.sort_keys
