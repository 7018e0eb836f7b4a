"""Merge rules and sequence groups in the delta merge: applied before a delta is folded, also after failures."""

import pytest

from processor.errors import ConfigurationError
from tests.builtin.merging import merging
from tests.builtin.reading import bodies

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
