"""Out of focus: each cause of subscribe.md's table, and when it is told."""

import pytest

from processor.errors import ConfigurationError
from tests.subscriptions.desk import Desk


@pytest.fixture
def desk():
    """One order matches `/qty > 10`."""
    desk = Desk()
    desk.put(1, qty=20)
    return desk


@pytest.mark.parametrize("call", ["sow_and_subscribe", "sow_and_delta_subscribe"])
def test_a_record_that_no_longer_matches_is_told_as_it_is_now(desk, call):
    """Reason `match`, the new merged record, with the version of the update that was the cause."""
    desk.subscribe(call, "/qty > 10", "oof")
    desk.heard()
    desk.put(1, qty=3)
    [message] = desk.subscriber.take(9)
    assert (message.command, message.reason, message.data, message.version) == ("oof", "match", {"id": 1, "qty": 3}, 2)


@pytest.mark.parametrize(("kind", "reason"), [(b"delete", "deleted"), (b"expire", "expired")])
def test_a_record_that_is_gone_is_told_as_it_was(desk, kind, reason):
    """The last record, and why it went."""
    desk.subscribe("sow_and_subscribe", "/qty > 10", "oof")
    desk.heard()
    desk.delete(1, kind)
    [message] = desk.subscriber.take(9)
    assert (message.command, message.reason, message.data, message.version) == ("oof", reason, {"id": 1, "qty": 20}, 2)


def test_nothing_is_told_of_what_leaves_unless_it_was_asked_for(desk):
    """Neither of a change nor of a delete."""
    desk.put(2, qty=20)
    desk.subscribe("sow_and_subscribe", "/qty > 10")
    desk.heard()
    desk.put(1, qty=3)
    desk.delete(2)
    assert not desk.subscriber.has_waiting


@pytest.mark.parametrize("options", ["oof", ""])
@pytest.mark.parametrize("call", ["sow_and_delta_subscribe", "delta_subscribe"])
def test_what_comes_back_into_focus_is_whole(desk, call, options):
    """On a delta subscription too, whether it was told that the record left or not."""
    desk.subscribe(call, "/qty > 10", options)
    desk.heard()
    desk.put(1, qty=3, note="x")
    desk.put(1, qty=30, note="x")
    desk.put(1, qty=31, note="x")
    assert desk.heard()[-2:] == ["publish {id:1,note:x,qty:30}", "delta {id:1,qty:31}"]


def test_a_deleted_record_that_comes_again_is_whole(desk):
    """It is another one."""
    desk.subscribe("sow_and_delta_subscribe", None, "oof")
    desk.heard()
    desk.delete(1)
    desk.put(1, qty=20)
    assert desk.heard() == ["oof deleted {id:1,qty:20}", "publish {id:1,qty:20}"]


@pytest.mark.parametrize("call", ["subscribe", "delta_subscribe"])
def test_what_was_never_received_is_not_told_to_leave(desk, call):
    """Without a snapshot that is what nothing happened to since the subscription began."""
    desk.put(2, qty=20)
    desk.subscribe(call, "/qty > 10", "oof")
    desk.put(1, qty=3)
    desk.delete(2)
    assert desk.heard() == []
    desk.put(1, qty=30)
    desk.delete(1)
    assert desk.heard() == ["publish {id:1,qty:30}", "oof deleted {id:1,qty:30}"]


def test_what_was_received_as_a_delta_is_told_to_leave(desk):
    """A part of a record is received, too."""
    desk.subscribe("delta_subscribe", "/qty > 10", "oof")
    desk.put(1, qty=21)
    desk.put(1, qty=3)
    assert desk.heard() == ["delta {id:1,qty:21}", "oof match {id:1,qty:3}"]


@pytest.mark.parametrize("pace", ["", ",conflation=100ms", ",conflation=auto", ",top_n=9"])
def test_an_update_that_was_not_told_is_not_received(desk, pace):
    """Under `no_empties` it may be that nothing was told since the subscription began."""
    desk.subscribe("delta_subscribe", "/qty > 10", f"oof,no_empties{pace}")
    for _ in range(2):
        desk.put(1, qty=20)
        desk.pass_ms(100)
        assert desk.heard() == []
    desk.put(1, qty=3)
    desk.pass_ms(100)
    assert desk.heard() == []
    desk.put(1, qty=30)
    desk.pass_ms(100)
    desk.heard()
    desk.put(1, qty=30)
    desk.put(1, qty=3)
    desk.pass_ms(100)
    assert [line[:3] for line in desk.heard()] == ["oof"]


@pytest.mark.parametrize("pace", ["", ",conflation=100ms"])
def test_what_was_told_after_an_empty_update_is_received(desk, pace):
    """Then it is told to leave."""
    desk.subscribe("delta_subscribe", "/qty > 10", f"oof,no_empties{pace}")
    told = []
    for qty in (20, 21, 3):
        desk.put(1, qty=qty)
        desk.pass_ms(100)
        told += desk.heard()
    assert [line[:5] for line in told] == ["delta", "oof m"]


def test_a_filter_that_moves_with_the_clock_has_no_oof():
    """Nobody would tell when a record leaves without an update: it is refused."""
    with pytest.raises(ConfigurationError, match="changes with the clock"):
        Desk().subscribe("subscribe", "/at > UNIX_TIMESTAMP()", "oof")


def test_a_filter_that_moves_with_the_clock_remembers_what_was_told(functions):
    """What it says today of the record before is not what was told then."""
    desk = Desk()
    desk.put(1, at=1)
    desk.subscribe("sow_and_delta_subscribe", "/at >= TICK()", "no_empties")
    desk.heard()
    functions.Clock.now = 5
    desk.put(1, at=5)  # Did not match today, and was told.
    assert desk.heard() == ["delta {at:5,id:1}"]
    functions.Clock.now = 9
    desk.put(1, at=6)  # Neither matches today: it is told no more.
    desk.put(1, at=9)
    assert desk.heard() == ["publish {at:9,id:1}"]
    desk.delete(1)
    desk.put(1, at=9)
    assert desk.heard() == ["publish {at:9,id:1}"]


def test_what_the_clock_let_in_is_unknown(functions):
    """A record that matches today, but did not when it was looked at, comes whole."""
    desk = Desk()
    desk.put(1, until=3)
    desk.subscribe("sow_and_delta_subscribe", "/until <= TICK()")
    desk.heard()
    functions.Clock.now = 5
    desk.put(1, until=4)
    assert desk.heard() == ["publish {id:1,until:4}"]


def test_a_worker_hands_an_order_on():
    """The story of subscribe.md: two workers add their fields, a third gets the whole order once both are there."""
    desk = Desk()
    waits = "/state = 'new' AND /inventory IS NULL AND /credit IS NULL"
    inventory, credit, fulfilment = (desk.engine.connect() for _ in range(3))
    desk.subscribe("sow_and_delta_subscribe", waits, "oof", connection=inventory)
    desk.subscribe("sow_and_delta_subscribe", waits, "oof", connection=credit)
    ready = "/state = 'new' AND /inventory IS NOT NULL AND /credit IS NOT NULL"
    desk.subscribe("sow_and_delta_subscribe", ready, "oof", connection=fulfilment)
    for worker in (inventory, credit, fulfilment):
        assert desk.heard(worker) == ["group_begin", "group_end"]
    desk.put(7, state="new")
    assert desk.heard(inventory) == desk.heard(credit) == ["publish {id:7,state:new}"]
    desk.put(7, state="new", inventory=1)
    assert desk.heard(inventory) == desk.heard(credit) == ["oof match {id:7,inventory:1,state:new}"]
    assert desk.heard(fulfilment) == []
    desk.put(7, state="new", inventory=1, credit=2)
    assert desk.heard(fulfilment) == ["publish {credit:2,id:7,inventory:1,state:new}"]
    assert desk.heard(inventory) == desk.heard(credit) == []
