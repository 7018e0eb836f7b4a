"""Merge rules and sequence groups in the delta merge, and Universal Messaging's way (`preset: um`)."""

import pytest

from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.merge import apply_delta
from tests.builtin.merging import bodies, kinds, merging, rejected, told

RULES = {"merge_rules": {"/sum": "sum", "/max": "max"}}
GROUPS = {"sequence_groups": [{"by": "/ts", "fields": ["/price"]}]}


def test_rules_meet_the_record_and_the_delta_topic_tells_the_outcome():
    """The first delta meets no record; a full publish replaces, rules or not."""
    driver = merging(**RULES)
    deltas = [{"sum": 1, "max": 5}, {"sum": 2, "max": 3}, {"sum": 3, "max": 9}]
    driver.pipe_batch([("7", body, None) for body in deltas])
    driver.pipe_input("7", {"sum": 1, "max": 1}, {"command": "publish"})
    assert bodies(driver.pending_output("sow")) == [
        {"sum": 1, "max": 5}, {"sum": 3, "max": 5}, {"sum": 6, "max": 9}, {"sum": 1, "max": 1, "id": "7"},
    ]  # fmt: skip
    assert bodies(driver.pending_output("delta"))[1] == {"sum": 3}


@pytest.mark.parametrize("calamity", ["abort", "crash"])
def test_nothing_is_added_twice(calamity):
    """Neither a record that comes again after a crash nor one that its publisher repeats is added twice."""
    driver = merging(**RULES)
    driver.pipe_input("7", {"sum": 1}, {"client": "c", "sequence": "1"})
    driver.commit()
    driver.pipe_input("7", {"sum": 2}, {"client": "c", "sequence": "2"})
    getattr(driver, calamity)()
    driver.pipe_input("7", {"sum": 2}, {"client": "c", "sequence": "2"})
    driver.commit()
    driver.crash()
    assert bodies(driver.read_output("sow")) == [{"sum": 1}, {"sum": 3}]


def test_a_late_delta_is_counted_and_undoes_nothing():
    """A late delta is counted; it leaves the group as it is, and its other fields apply."""
    driver = merging(**GROUPS)
    driver.pipe_batch([("7", {"ts": 2, "price": 2}, None), ("7", {"ts": 1, "price": 1, "note": "x"}, None)])
    assert bodies(driver.pending_output("sow"))[1] == {"ts": 2, "price": 2, "note": "x"}
    driver.commit()
    assert driver.events == {"stale_group": 1}


def test_a_rule_that_does_not_exist_stops_the_start():
    """An unknown rule is refused at the start, with the settings in the message."""
    with pytest.raises(ConfigurationError, match="sun"):
        merging(merge_rules={"/n": "sun"})


FULL = {"pair": "EURUSD", "bid": 1.0850, "offer": 1.0854, "size": {"bid": 5, "offer": 3}, "note": None}
TIGHTER = {"pair": "EURUSD", "offer": 1.0852}
MERGED = FULL | TIGHTER


def currencies():
    """A driver of a topic of currency pairs as UM merges them."""
    return merging(preset="um", key=("/pair",))


def test_the_late_joiner_gets_the_whole_and_the_earlier_one_the_delta():
    """A late joiner gets the full EURUSD record; an earlier subscriber gets the tighter offer as a delta."""
    driver = currencies()
    driver.pipe_input("EURUSD", FULL)
    driver.pipe_input("EURUSD", TIGHTER, {"allow-merge": "true"})
    driver.commit()
    assert bodies(driver.read_output("sow"))[-1] == MERGED
    first, second = bodies(driver.read_output("delta"))
    assert (first, second) == (FULL, TIGHTER)
    assert apply_delta(apply_delta(None, first), second) == MERGED
    assert kinds(driver.read_output("delta")) == [("EURUSD", "1", "insert"), ("EURUSD", "2", None)]
    assert driver.rejections == {}


def test_a_publish_that_does_not_allow_merging_replaces():
    """With the flag false or without it, fields that the publish lacks are gone and listed as removed."""
    for headers in (None, {"allow-merge": "false"}):
        driver = currencies()
        driver.pipe_batch([("EURUSD", FULL, None), ("EURUSD", TIGHTER, headers)])
        assert bodies(driver.pending_output("sow"))[-1] == TIGHTER
        told_last = driver.pending_output("delta")[-1]
        assert bodies([told_last]) == [TIGHTER]
        assert told(told_last)["removed"] == '["/bid", "/size", "/note"]'


def test_a_nested_object_replaces_and_a_null_is_a_value():
    """UM's engine merges the fields of the event and replaces nested objects; nulls are stored."""
    driver = currencies()
    change = {"pair": "EURUSD", "size": {"bid": None}, "bid": None}
    driver.pipe_batch([("EURUSD", FULL, None), ("EURUSD", change, {"allow-merge": "true"})])
    assert bodies(driver.pending_output("sow"))[-1] == FULL | change
    assert told(driver.pending_output("delta")[-1])["removed"] == '["/size/offer"]'


def test_the_first_event_of_a_pair_may_allow_merging():
    """Merged with no record an event is stored as it is, nulls too."""
    driver = currencies()
    driver.pipe_input("EURUSD", FULL, {"allow-merge": "true"})
    assert bodies(driver.pending_output("sow")) == [FULL]


def test_pairs_do_not_meet():
    """A delta for one pair leaves the others; one that names another pair than its key is rejected."""
    driver = currencies()
    gbp = FULL | {"pair": "GBPUSD"}
    driver.pipe_batch([("EURUSD", FULL, None), ("GBPUSD", gbp, None), ("EURUSD", TIGHTER, {"allow-merge": "true"})])
    assert bodies(driver.pending_output("sow")) == [FULL, gbp, MERGED]
    driver.pipe_input("GBPUSD", TIGHTER, {"allow-merge": "true"})
    assert [reason for reason, _ in rejected(driver)] == ["key_mismatch"]


def test_a_setting_beats_the_preset():
    """The preset is three settings, and each may be another."""
    preset = TopicConfig(preset="um")
    assert (preset.merge_depth, preset.null_policy, preset.default_command) == (1, "set", "publish")
    driver = merging(preset="um", key=("/pair",), null_policy="ignore")
    driver.pipe_batch([("EURUSD", FULL, None), ("EURUSD", {"bid": None}, {"allow-merge": "true"})])
    assert bodies(driver.pending_output("sow"))[-1] == FULL
