"""Universal Messaging's way, `preset: um`: its currency story."""

from processor.config import TopicConfig
from processor.merge import apply_delta
from tests.builtin.merging import kinds, merging, rejected
from tests.builtin.reading import bodies, told

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
