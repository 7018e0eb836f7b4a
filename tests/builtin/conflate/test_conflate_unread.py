"""Updates that wait unread: a bad one is found among good ones, and leaves no trace but its rejection."""

import pytest

from processor.builtin.conflate.pending import UNREAD_MAX
from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying
from tests.builtin.merging import bodies, told

LONG = "1" * 19
"""A version that fits 63 bits, and is longer than a packed head has room for."""


@pytest.fixture
def orders():
    """An underlying topic with one record, delivered."""
    orders = Underlying()
    orders.update("7", {"id": 7, "n": 0, "back": 0, "still": 1})
    orders.driver.advance_time(INTERVAL_MS)
    orders.driver.commit()
    return orders


def body(n, back=0):
    """The record as its updates move it."""
    return {"id": 7, "n": n, "back": back, "still": 1}


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize(
    ("value", "version"),
    [
        (b'{"id":7,"back":[1', "3"),
        (b"7", "3"),
        (b"{},{}", "3"),
        (body(5, back=5), "x"),
        (body(5, back=5), ""),
        (body(5, back=5), "9" * 19),
        (body(5, back=5), "1" * 20),
    ],
)
def test_a_bad_update_among_good_ones_is_rejected_alone(orders, value, version, in_one_batch):
    """It is not counted, it touches nothing, and the dead letter is the record as it came."""
    updates = [
        ("7", body(1, back=1), {"version": "2"}),
        ("7", value, {"version": version}),
        ("7", body(2), {"version": LONG}),
    ]
    for batch in [updates] if in_one_batch else [[update] for update in updates]:
        orders.driver.pipe_batch(batch)
    came = orders.driver.input[-2]
    orders.driver.advance_time(INTERVAL_MS)
    [delta], [letter] = orders.driver.pending_output("delta"), orders.driver.pending_output("dlq")
    assert bodies([delta]) == [{"id": 7, "n": 2, "back": 0}]
    assert (told(delta)["conflated"], told(delta)["version"]) == ("2", LONG)
    assert (letter.key, letter.value, letter.headers[0]) == (came.key, came.value, ("version", version.encode()))
    assert told(letter)["source"] == f"orders.sow/0/{came.offset}"


def test_after_many_that_were_read_early_bad_ones_change_nothing(orders):
    """The last good update is delivered, though all unread ones are bad."""
    for n in range(UNREAD_MAX):
        orders.update("7", body(n, back=n))
    for _ in range(2):
        orders.driver.pipe_batch([("7", b"{", {"version": "99"})])
    orders.driver.advance_time(INTERVAL_MS)
    [delta] = orders.driver.pending_output("delta")
    assert bodies([delta]) == [{"id": 7, "n": UNREAD_MAX - 1, "back": UNREAD_MAX - 1}]
    assert told(delta)["conflated"] == str(UNREAD_MAX)
    assert len(orders.driver.pending_output("dlq")) == 2


def test_a_delete_among_updates_touches_all_and_counts(orders):
    """A delete among updates counts as an update and touches every field, with any updates around it."""
    orders.update("7", body(1))
    orders.update("7", None)
    orders.update("7", body(0))
    orders.driver.advance_time(INTERVAL_MS)
    [delta] = orders.driver.pending_output("delta")
    assert bodies([delta]) == [body(0)]
    assert told(delta)["conflated"] == "3"


def test_headers_of_each_update_stay_its_own(orders):
    """Each update keeps its own headers, and the last one's are delivered."""
    orders.update("7", body(1), client="one")
    orders.update("7", body(2))
    orders.update("7", body(3), client="three")
    orders.driver.advance_time(INTERVAL_MS)
    [delta] = orders.driver.pending_output("delta")
    assert (told(delta)["client"], told(delta)["version"]) == ("three", "4")
    orders.driver.commit()
    orders.update("7", body(4), client="four")
    orders.update("7", body(5))
    orders.driver.advance_time(INTERVAL_MS)
    [delta] = orders.driver.pending_output("delta")
    assert "client" not in told(delta)
