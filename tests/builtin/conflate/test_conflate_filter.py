"""A conflated topic with a filter: the records of the copy, and deliveries of those that leave it."""

import pytest

from processor.builtin.conflate import Conflate
from processor.config import ConflatedConfig, TopicConfig
from processor.errors import ConfigurationError
from processor.testing import ProcessorTestDriver
from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying
from tests.builtin.merging import bodies, seen, told
from tests.endtoend.oracle import last_per_key, replay


@pytest.fixture
def large() -> Underlying:
    """A copy of the orders of more than ten."""
    return Underlying(filter="/qty > 10")


def after(orders, *updates):
    """Return the deliveries of the next interval on SOW and delta."""
    for update in updates:
        orders.update("7", update)
    orders.driver.advance_time(INTERVAL_MS)
    sow, delta = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
    orders.driver.commit()
    assert last_per_key(seen(orders.driver.read_output("sow"))) == replay(seen(orders.driver.read_output("delta")))
    return sow, delta


def test_only_matching_records_are_in_the_copy(large):
    """A record that does not match and was never delivered is on neither topic of the copy."""
    assert after(large, {"id": 7, "qty": 10}) == ([], [])
    sow, _ = after(large, {"id": 7, "qty": 11})
    assert bodies(sow) == [{"id": 7, "qty": 11}]
    assert told(sow[0])["kind"] == "insert"


def test_a_record_that_stops_matching_leaves_at_the_end_of_its_interval(large):
    """A record that stops matching is delivered as a delete at the end of its interval."""
    after(large, {"id": 7, "qty": 11})
    [sow], [delta] = after(large, {"id": 7, "qty": 9})
    assert bodies([sow, delta]) == [None, {"id": 7}]
    assert told(sow)["kind"] == told(delta)["kind"] == "delete"
    assert told(sow)["version"] == "2"


def test_a_record_that_comes_back_is_whole(large):
    """A reader has nothing that a delta would apply to."""
    after(large, {"id": 7, "qty": 11, "note": "x"})
    after(large, {"id": 7, "qty": 9, "note": "x"})
    [sow], [delta] = after(large, {"id": 7, "qty": 12, "note": "x"})
    assert bodies([sow, delta]) == [{"id": 7, "qty": 12, "note": "x"}] * 2
    assert told(sow)["kind"] == "insert"


def test_one_that_leaves_and_returns_within_an_interval_was_touched_all_over(large):
    """A record that leaves and returns within an interval is one update; the values in between are not delivered."""
    after(large, {"id": 7, "qty": 11, "note": "x"})
    [sow], [delta] = after(large, {"id": 7, "qty": 9, "note": "x"}, {"id": 7, "qty": 11, "note": "x"})
    assert bodies([delta]) == [{"id": 7, "qty": 11, "note": "x"}]
    assert "kind" not in told(sow)


def test_one_that_matches_for_less_than_an_interval_is_never_delivered(large):
    """A record that matches for less than an interval is never delivered: the state at the end counts."""
    assert after(large, {"id": 7, "qty": 11}, {"id": 7, "qty": 9}) == ([], [])


def test_the_expiry_of_a_record_that_had_left_is_nothing(large):
    """There is nothing left to expire in the copy."""
    after(large, {"id": 7, "qty": 11})
    after(large, {"id": 7, "qty": 9})
    large.update("7", None, kind="expire")
    large.driver.advance_time(INTERVAL_MS)
    assert large.driver.pending_output("sow") == []


def test_updates_read_again_after_a_crash_are_filtered_again(large):
    """After a crash the copy is the same as without one."""
    large.update("1", {"id": 1, "qty": 20})
    large.update("2", {"id": 2, "qty": 5})
    large.driver.commit()
    large.driver.crash()
    large.driver.advance_time(INTERVAL_MS)
    large.driver.commit()
    assert list(last_per_key(seen(large.driver.read_output("sow")))) == ["1"]
    assert large.driver.committed_offset == 2


def test_a_filter_may_ask_for_the_key_and_the_topic():
    """The topic is the one that is copied."""
    orders = Underlying(filter="SOW_KEY() = '7' AND TOPIC_NAME() = 'orders'")
    for key in ("7", "8"):
        orders.update(key, {"id": key})
    orders.driver.advance_time(INTERVAL_MS)
    assert bodies(orders.driver.pending_output("sow")) == [{"id": "7"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/qty >", "conflated.c.filter: "),
        ("UNIX_TIMESTAMP() > /until", "changes with the clock"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused_before_anything_starts(text, message):
    """A filter that cannot be used is refused at the start, with its place in the settings."""
    with pytest.raises(ConfigurationError, match=message):
        Conflate.check("c", ConflatedConfig(underlying="o", filter=text), None)


def test_records_without_fields_cannot_be_filtered():
    """A topic of bytes refuses a filter, as its records have no paths."""
    driver = ProcessorTestDriver(
        Conflate, ConflatedConfig(underlying="o"), name="c", topic=TopicConfig(message_type="binary", key="explicit")
    )
    with pytest.raises(ConfigurationError, match="have no fields"):
        Conflate.check("c", ConflatedConfig(underlying="o", filter="/a = 1"), driver._codec)
