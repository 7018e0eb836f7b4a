"""The conflated topic after crashes and rollbacks: nothing pending is written anywhere, it is read again."""

import pytest

from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying, delivered
from tests.builtin.merging import told


@pytest.fixture
def orders() -> Underlying:
    """An underlying topic without records."""
    return Underlying()


def test_the_committed_position_never_passes_a_pending_update(orders):
    """Other keys are delivered and committed meanwhile; the oldest pending update holds the position."""
    orders.driver.pipe_batch([orders.record("1", {"id": 1})])
    orders.driver.advance_time(500)
    orders.driver.pipe_batch([orders.record("2", {"id": 2}), orders.record("1", {"id": 1, "n": 1})])
    orders.driver.commit()
    assert orders.driver.committed_offset == 0
    orders.driver.advance_time(500)
    orders.driver.commit()
    assert orders.driver.committed_offset == 1
    orders.driver.advance_time(500)
    orders.driver.commit()
    assert orders.driver.committed_offset == 3


@pytest.mark.parametrize("keep_store", [True, False])
def test_a_crash_loses_no_pending_update(orders, keep_store):
    """It is read again and waits for an interval from that time."""
    orders.update("7", {"id": 7})
    orders.driver.advance_time(INTERVAL_MS - 1)
    orders.driver.commit()
    orders.driver.crash(keep_store=keep_store)
    orders.driver.advance_time(INTERVAL_MS - 1)
    assert delivered(orders) == []
    orders.driver.advance_time(1)
    assert delivered(orders) == [{"id": 7}]


@pytest.mark.parametrize("keep_store", [True, False])
def test_a_delivered_update_is_not_delivered_again(orders, keep_store):
    """Input that comes again because an older update is pending is recognised by its offset."""
    orders.driver.pipe_batch([orders.record("1", {"id": 1, "n": 0})])
    orders.driver.pipe_batch([orders.record("2", {"id": 2, "n": n}, no_conflate="true") for n in range(3)])
    orders.driver.commit()
    assert orders.driver.committed_offset == 0
    orders.driver.crash(keep_store=keep_store)
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == [{"id": 1, "n": 0}]
    assert orders.driver.events["already_delivered"] == 3


@pytest.mark.parametrize("first", [1, 2, 3])
def test_input_that_comes_again_in_pieces_is_not_delivered_again(orders, first):
    """The input may come again in pieces of any size, over any time."""
    orders.driver.pipe_batch([orders.record("1", {"id": 1})])
    for n in range(2, 6):
        orders.update(str(n), {"id": n}, no_conflate="true")
    orders.driver.commit()
    orders.driver.crash(feed=False)
    for records in (first, 1, None):
        orders.driver.feed(records)
        orders.driver.advance_time(INTERVAL_MS)
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == [{"id": 1}]


def test_a_delivery_that_was_rolled_back_is_made_again(orders):
    """With the same count of updates, an interval later."""
    for n in range(2):
        orders.update("7", {"id": 7, "n": n})
    orders.driver.advance_time(INTERVAL_MS)
    [before] = orders.driver.pending_output("delta")
    orders.driver.abort()
    assert orders.driver.pending_output("delta") == []
    orders.driver.advance_time(INTERVAL_MS)
    [after] = orders.driver.pending_output("delta")
    assert (after.value, after.headers) == (before.value, before.headers)


def test_a_key_deleted_and_read_again_is_not_delivered_twice(orders):
    """A tombstone leaves no trace in the state, so nothing is delivered before all input has come again."""
    orders.driver.pipe_batch([orders.record("1", {"id": 1})])
    orders.driver.pipe_batch([orders.record("2", {"id": 2}, no_conflate="true")])
    orders.driver.pipe_batch([orders.record("2", None, no_conflate="true")])
    orders.driver.commit()
    orders.driver.crash(feed=False)
    orders.driver.feed(2)
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == []
    orders.driver.feed()
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == [{"id": 1}]
    assert orders.driver.committed_offset == 3


def test_records_of_the_future_are_known_when_they_come_again(orders):
    """Records whose publisher's clock is ahead do not make a successor believe that it has read all input."""
    orders.driver.pipe_batch([orders.record("1", {"id": 1})])
    orders.driver.pipe_batch([orders.record("2", {"id": 2}, no_conflate="true")])
    orders.driver.commit()
    orders.driver.input = [record._replace(timestamp_ms=2**45) for record in orders.driver.input]
    orders.driver.crash(feed=False)
    orders.driver.feed(1)
    orders.driver.advance_time(0)
    orders.driver.feed()
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == [{"id": 1}]


def test_records_after_an_early_end_are_recognised(orders):
    """A lagging replica reports the end of the input too early; records behind it are still recognised."""
    orders.driver.pipe_batch([orders.record("1", {"id": 1})])
    orders.driver.pipe_batch([orders.record("2", {"id": 2}, no_conflate="true")])
    orders.driver.commit()
    orders.driver.crash(feed=False)
    orders.driver.feed(1)
    orders.driver._task.reached_end()
    orders.driver.advance_time(0)
    orders.driver.feed()
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == [{"id": 1}]


def test_a_rejected_record_that_comes_again_is_rejected_once(orders):
    """The note that is committed with the position lists the rejected records, so a successor rejects none again."""
    orders.driver.pipe_batch([orders.record("1", {"id": 1})])
    orders.driver.pipe_input("2", b"{", {"version": "1", "no_conflate": "true"})
    orders.driver.pipe_input(None, {"id": 3}, {"version": "1"})
    orders.driver.commit()
    assert orders.driver.committed_offset == 0
    for _ in range(2):
        orders.driver.crash()
        orders.driver.commit()
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == [{"id": 1}]
    assert [told(record)["dlq_reason"] for record in orders.driver.read_output("dlq")] == [
        "undecodable",
        "missing_key",
    ]
