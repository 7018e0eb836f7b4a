"""Crashes between deliveries of a conflated topic, and records of its underlying that it cannot read."""

import pytest

from processor.builtin.conflate.pending import UNREAD_MAX
from processor.errors import PartitionHeld
from processor.runtime.recovery.log_replay import PresentKeys
from processor.store.memory import MemoryStore
from processor.wire.forwarding import moved_record
from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying, delivered
from tests.builtin.merging import bodies, told


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


def moved_to_another_cluster(orders, begin_offset):
    """The input is compacted, its offsets begin at 0 again, and the copy begins at an offset that a tool has set."""
    last = {record.key: record for record in orders.driver.input}
    orders.driver._finish_aborted()
    orders.driver.input = []
    for record in last.values():
        orders.driver.append_input(record.key, record.value, record.headers)
    orders.driver._begin(MemoryStore(), begin_offset)


@pytest.fixture
def many_orders(orders):
    """An underlying topic with a record of many updates and another one, both delivered."""
    for n in range(100):
        orders.update("7", {"id": 7, "n": n})
    orders.update("8", {"id": 8})
    orders.driver.advance_time(INTERVAL_MS)
    orders.driver.commit()
    return orders


@pytest.mark.parametrize("begin_offset", [0, 2])
def test_on_another_cluster_updates_before_the_first_start_are_delivered(many_orders, begin_offset):
    """Offsets of the former cluster in the headers `source` are higher than those of new updates."""
    moved_to_another_cluster(many_orders, begin_offset)
    many_orders.driver.pipe_batch([many_orders.record("7", {"id": 7, "n": 1000}), many_orders.record("8", None)])
    many_orders.driver.advance_time(INTERVAL_MS)
    assert delivered(many_orders) == [{"id": 7, "n": 1000}, None]
    assert many_orders.driver.events["already_delivered"] == 2 - begin_offset


def test_on_another_cluster_a_crash_loses_no_pending_update(many_orders):
    """Also of a key that was last delivered on the former cluster, with a higher offset in its header `source`."""
    moved_to_another_cluster(many_orders, 2)
    many_orders.update("9", {"id": 9})
    many_orders.driver.advance_time(INTERVAL_MS)
    many_orders.driver.commit()
    many_orders.update("7", {"id": 7, "n": 1000})
    many_orders.driver.commit()
    many_orders.driver.crash()
    many_orders.driver.advance_time(INTERVAL_MS)
    assert delivered(many_orders) == [{"id": 7, "n": 1000}]


def test_a_key_whose_versions_began_again_is_delivered_in_its_last_state(orders):
    """In the input of a former release a key that came back begins at version 1, below that of its delete."""
    orders.update("1", {"id": 1})
    orders.driver.pipe_batch([("2", {"id": 2, "n": n}, {"version": str(48 + n)}) for n in range(2)])
    orders.driver.pipe_batch([("2", None, {"version": "50", "kind": "delete", "no_conflate": "true"})])
    again = {"version": "1", "kind": "insert", "no_conflate": "true"}
    orders.driver.pipe_batch([("2", {"id": 2, "n": 2}, again)])
    orders.driver.commit()
    orders.driver.crash()
    orders.driver.advance_time(INTERVAL_MS)
    orders.driver.commit()
    last = {record.key: record for record in orders.driver.read_output("sow")}
    assert bodies(last.values()) == [{"id": 2, "n": 2}, {"id": 1}]


LONG = "1" * 19
"""A version that fits 63 bits, and is longer than a packed head has room for."""


@pytest.fixture
def long_orders():
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
def test_a_bad_update_among_good_ones_is_rejected_alone(long_orders, value, version, in_one_batch):
    """It is not counted, it touches nothing, and the dead letter is the record as it came."""
    updates = [
        ("7", body(1, back=1), {"version": "2"}),
        ("7", value, {"version": version}),
        ("7", body(2), {"version": LONG}),
    ]
    for batch in [updates] if in_one_batch else [[update] for update in updates]:
        long_orders.driver.pipe_batch(batch)
    came = long_orders.driver.input[-2]
    long_orders.driver.advance_time(INTERVAL_MS)
    [delta], [letter] = long_orders.driver.pending_output("delta"), long_orders.driver.pending_output("dlq")
    assert bodies([delta]) == [{"id": 7, "n": 2, "back": 0}]
    assert (told(delta)["conflated"], told(delta)["version"]) == ("2", LONG)
    assert (letter.key, letter.value, letter.headers[0]) == (came.key, came.value, ("version", version.encode()))
    assert told(letter)["source"] == f"orders.sow/0/{came.offset}"


def test_after_many_that_were_read_early_bad_ones_change_nothing(long_orders):
    """The last good update is delivered, though all unread ones are bad."""
    for n in range(UNREAD_MAX):
        long_orders.update("7", body(n, back=n))
    for _ in range(2):
        long_orders.driver.pipe_batch([("7", b"{", {"version": "99"})])
    long_orders.driver.advance_time(INTERVAL_MS)
    [delta] = long_orders.driver.pending_output("delta")
    assert bodies([delta]) == [{"id": 7, "n": UNREAD_MAX - 1, "back": UNREAD_MAX - 1}]
    assert told(delta)["conflated"] == str(UNREAD_MAX)
    assert len(long_orders.driver.pending_output("dlq")) == 2


def test_a_delete_among_updates_touches_all_and_counts(long_orders):
    """A delete among updates counts as an update and touches every field, with any updates around it."""
    long_orders.update("7", body(1))
    long_orders.update("7", None)
    long_orders.update("7", body(0))
    long_orders.driver.advance_time(INTERVAL_MS)
    [delta] = long_orders.driver.pending_output("delta")
    assert bodies([delta]) == [body(0)]
    assert told(delta)["conflated"] == "3"


def test_headers_of_each_update_stay_its_own(long_orders):
    """Each update keeps its own headers, and the last one's are delivered."""
    long_orders.update("7", body(1), client="one")
    long_orders.update("7", body(2))
    long_orders.update("7", body(3), client="three")
    long_orders.driver.advance_time(INTERVAL_MS)
    [delta] = long_orders.driver.pending_output("delta")
    assert (told(delta)["client"], told(delta)["version"]) == ("three", "4")
    long_orders.driver.commit()
    long_orders.update("7", body(4), client="four")
    long_orders.update("7", body(5))
    long_orders.driver.advance_time(INTERVAL_MS)
    [delta] = long_orders.driver.pending_output("delta")
    assert "client" not in told(delta)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_record_whose_delete_was_compacted_away_leaves_the_copy(orders, is_ahead):
    """Also one that was delivered ahead of the committed position, which waits for an older update."""
    orders.update("0", {"id": 0}, no_conflate="true")
    if is_ahead:
        orders.update("1", {"id": 1})
    orders.update("2", {"id": 2}, no_conflate="true")
    orders.driver.commit()
    assert orders.driver.committed_offset == (1 if is_ahead else 2)
    orders.driver.input[-1] = orders.driver.input[-1]._replace(key=b"3")
    orders.driver.crash(feed=False)
    present = PresentKeys("orders.sow", 0, 0, 0, orders.driver._task.state)
    present.take(orders.driver.input)
    present.finish(0)
    orders.driver._task.process(present.deletes(orders.driver.committed_offset))
    orders.driver.feed()
    orders.driver.advance_time(INTERVAL_MS)
    orders.driver.commit()
    last = {record.key: record.value for record in orders.driver.read_output("sow")}
    assert last.pop(b"2") is None
    assert None not in last.values()
    assert orders.driver.committed_offset == len(orders.driver.input)


@pytest.mark.parametrize("crashes", [False, True])
def test_at_the_end_of_a_moved_topic_pending_updates_are_delivered_before_the_partition_is_held(orders, crashes):
    """Also after a restart, when no record follows that a predecessor has not seen."""
    orders.update("7", {"id": 7})
    orders.driver.commit()
    orders.driver.append_input(*moved_record("orders_12"))
    if crashes:
        orders.driver.crash()
    else:
        orders.driver.feed()
    orders.driver.advance_time(INTERVAL_MS)
    assert delivered(orders) == [{"id": 7}]
    assert orders.driver.committed_offset == 1
    with pytest.raises(PartitionHeld, match="'orders_12' has taken its place") as held:
        orders.driver.advance_time(0)
    assert held.value.reason == "fenced"
