"""A worker merges a redelivered record once under merge rules and sequence groups."""

import pytest

from tests.builtin.merging import bodies, merging, rejected, told

RULES = {"/qty": "sum", "/log": "append", "/low": "min", "/owner": "first"}


def orders():
    """A driver of a topic with rules."""
    return merging(merge_rules=RULES, sequence_groups=[{"by": "/ts", "fields": ["/price"]}])


def state(driver):
    """The last committed record."""
    return bodies(driver.read_output("sow"))[-1]


def test_deltas_add_and_readers_get_the_sum():
    """The delta topic carries the new sum and not the added amount, so replaying it adds nothing twice."""
    driver = orders()
    driver.pipe_batch([("7", {"id": 7, "qty": 0.1, "log": ["a"], "low": 5, "owner": "x"}, None)])
    driver.pipe_batch([("7", {"qty": 0.2, "log": "b", "low": 6, "owner": "y"}, None)])
    driver.commit()
    assert state(driver) == {"id": 7, "qty": 0.3, "log": ["a", "b"], "low": 5, "owner": "x"}
    assert bodies(driver.read_output("delta"))[-1] == {"id": 7, "qty": 0.3, "log": ["a", "b"]}


def test_a_publish_replaces_under_any_rules():
    """A full publish ignores the merge rules and replaces the record; the next delta adds to the published values."""
    driver = orders()
    driver.pipe_batch([("7", {"id": 7, "qty": 1}, None), ("7", {"id": 7, "qty": 5}, {"command": "publish"})])
    driver.pipe_input("7", {"qty": 1})
    assert [body["qty"] for body in bodies(driver.pending_output("sow"))] == [1, 5, 6]


@pytest.mark.parametrize("calamity", ["abort", "crash", "crash and keep the disk"])
def test_a_record_redelivered_after_a_calamity_is_added_once(calamity):
    """A record that is redelivered after an abort or a crash is added once: a rollback discards its sums."""
    driver = orders()
    driver.pipe_input("7", {"id": 7, "qty": 10, "log": [0]})
    driver.commit()
    driver.write()
    for n in range(1, 4):
        driver.pipe_input("7", {"qty": n, "log": [n]})
        if calamity == "abort":
            driver.abort()
        else:
            driver.crash(keep_store=calamity != "crash")
        driver.pipe_input("7", {"qty": n, "log": [n]})
        driver.commit()
        driver.crash()
    assert state(driver) == {"id": 7, "qty": 22, "log": [0, 1, 1, 2, 2, 3, 3]}


@pytest.mark.parametrize("between", ["nothing", "commit", "crash"])
def test_a_sequence_that_is_sent_again_is_added_once(between):
    """A repeated sequence of a publisher is added once, in the same transaction, after it, and on another worker."""
    driver = orders()
    for headers in ({"client": "desk", "sequence": "1"}, {"client": "desk", "sequence": "2"}) * 2:
        driver.pipe_input("7", {"id": 7, "qty": 1, "log": ["x"]}, headers)
        if between != "nothing":
            driver.commit()
        if between == "crash":
            driver.crash()
    driver.commit()
    assert state(driver) == {"id": 7, "qty": 2, "log": ["x", "x"]}
    assert driver.events["duplicate"] == 2


def test_a_late_delta_is_merged_without_its_group_and_counted():
    """A late delta is merged without the fields of its group, and counts as an update."""
    driver = orders()
    driver.pipe_batch([("7", {"id": 7, "ts": 2, "price": 1.5}, None), ("7", {"ts": 1, "price": 9, "x": 1}, None)])
    driver.pipe_input("7", {"ts": 1, "price": 9})
    driver.commit()
    assert state(driver) == {"id": 7, "ts": 2, "price": 1.5, "x": 1}
    assert bodies(driver.read_output("delta"))[1:] == [{"id": 7, "x": 1}, {"id": 7}]
    assert told(driver.read_output("delta")[-1])["empty"] == "true"
    assert driver.events["stale_group"] == 2


def test_a_value_a_rule_is_not_for_rejects_its_record_only():
    """A value that a rule does not accept rejects its record only; the dead letter has path, rule and value."""
    driver = orders()
    driver.pipe_batch([("7", {"id": 7, "qty": 1}, None), ("7", {"qty": "many", "x": 1}, None), ("7", {"qty": 1}, None)])
    assert rejected(driver) == [("schema_mismatch", "/qty, merge rule sum: 'many' is not a number")]
    driver.commit()
    assert state(driver) == {"id": 7, "qty": 2}


def test_a_nested_key_field_cannot_be_taken_away():
    """A nested key field cannot be removed: a delta that would is a `key_mismatch`; `merge_depth` 1 keeps the field."""
    driver = merging(key=("/order/id",), merge_depth=1, null_policy="remove")
    driver.pipe_input("7", {"order": {"id": 7, "x": 1}})
    driver.pipe_batch([("7", {"order": other}, None) for other in (5, None, [1])])
    assert [reason for reason, _ in rejected(driver)] == ["key_mismatch"] * 3
    driver.pipe_input("7", {"order": {"y": 2}})
    assert bodies(driver.pending_output("sow"))[-1] == {"order": {"y": 2, "id": 7}}
    assert told(driver.pending_output("delta")[-1])["removed"] == '["/order/x"]'
