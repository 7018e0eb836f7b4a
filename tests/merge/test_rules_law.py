"""Merge rules under random commands: batches, and records that come again."""

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import RecordRejected
from processor.merge import KeyFields, MergePolicy, apply_delta, compile_rules, diff, insert, merge
from processor.values.kinds import compare
from tests.builtin.merging import bodies, merging, rejected, told
from tests.merge.applying import change as change_delta
from tests.merge.test_law import NAMES, POLICIES, PROVED, RECORDS, SCALARS, find, written

NUMBERS = st.sampled_from([0, 1, -1, 0.1, 0.2, -0.0, 2**63, "1", "0.10"])
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(NAMES, SCALARS, max_size=2)
REPEATABLE = {"/min": "min", "/max": "max", "/set": "union", "/first": "first", "/as": "replace"}
ADDING = {"/sum": "sum", "/all": "append"}
GROUPS = [("/ts", ["/a", "/first", "/o/w", "/sum"])]

# Names of rules and groups, with values that mostly fit them.
RULED = st.fixed_dictionaries(
    {},
    optional={
        "ts": st.integers(0, 3) | st.none(),
        "a": VALUES,
        "o": st.none() | st.integers(0, 1) | st.dictionaries(st.sampled_from("vwx"), NUMBERS | st.none(), max_size=3),
        "sum": NUMBERS | st.none(),
        "min": NUMBERS,
        "max": NUMBERS,
        "all": VALUES,
        "set": VALUES,
        "first": VALUES,
        "as": VALUES,
        "free": VALUES,
    },
)
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), RULED),
        *[st.tuples(st.just("delta_publish"), RULED)] * 3,
        st.tuples(st.just("sow_delete"), st.none()),
    ),
    max_size=6,
)


def compiled(rules, policy):
    """The groups and rules of a topic, without those below its `merge_depth`."""
    if policy.merge_depth == 1:
        return compile_rules([("/ts", ["/a", "/first", "/sum"])], rules, policy=policy)
    return compile_rules(GROUPS, {**rules, "/o/v": "max"}, policy=policy)


def execute(record, delta, rules, policy):
    """Apply a delta publish; return None if it is rejected."""
    old, delta = deepcopy(record), deepcopy(delta)
    try:
        stale = change_delta(rules, old, delta)
    except RecordRejected:
        stale = None
    assert written(old) == written(record), "rules change the delta only"
    if stale is None:
        return None
    return insert(delta, policy) if old is None else merge(old, delta, policy)


@settings(PROVED, max_examples=100)
@given(COMMANDS, POLICIES)
def test_delta_replay_equals_the_record_under_any_rules(commands, policy):
    """The law holds with groups and every rule: they change the delta, and the merge computes the change."""
    rules = compiled(REPEATABLE | ADDING, policy)
    record = replayed = None
    for command, body in commands:
        if command == "sow_delete":
            record = replayed = None
            continue
        change = diff(record, deepcopy(body)) if command == "publish" else execute(record, body, rules, policy)
        if change is None:
            continue
        if record is not None:
            exact = diff(record, change.record)
            assert written(change.delta) == written(exact.delta)
            assert sorted(change.removed) == sorted(exact.removed)
        record = change.record
        replayed = apply_delta(replayed, deepcopy(change.delta), change.removed)
        assert written(replayed) == written(record)
        record = deepcopy(record)


@settings(PROVED, max_examples=100)
@given(RULED, RULED, POLICIES)
def test_a_delta_twice_is_a_delta_once_under_every_rule_but_sum_and_append(record, delta, policy):
    """Merging the same delta twice changes nothing under every rule but `sum` and `append`."""
    rules = compiled(REPEATABLE, policy)
    once = execute(record, delta, rules, policy)
    if once is None:
        return
    again = execute(once.record, delta, rules, policy)
    assert written(again.record) == written(once.record)
    assert (again.delta, again.removed) == ({}, [])


@pytest.mark.parametrize(("rule", "old", "new", "twice"), [("sum", 1, 2, 5), ("append", [1], [2], [1, 2, 2])])
def test_sum_and_append_count_a_delta_that_comes_twice(rule, old, new, twice):
    """`sum` and `append` count a repeated delta twice; the worker prevents a second merge of a redelivered record."""
    rules = compile_rules([], {"/v": rule})
    record = {"v": old}
    for _ in range(2):
        record = execute(record, {"v": new}, rules, MergePolicy()).record
    assert record == {"v": twice}


@settings(PROVED, max_examples=100)
@given(RULED, st.lists(RULED, max_size=5), POLICIES)
def test_a_sequence_never_goes_back_through_deltas(record, deltas, policy):
    """No delta lowers or removes the `by` value of a record, with any contents and any null policy."""
    rules = compiled({}, policy)
    for delta in deltas:
        change = execute(record, delta, rules, policy)
        if change is None:
            continue  # A number and a text under `max`: it is rejected, and changes nothing.
        if (ts := record.get("ts")) is not None:
            assert compare(change.record["ts"], ts) >= 0
            late = delta.get("ts") is None or delta["ts"] < ts
            for name in ("a", "first", "sum") if late else ():
                assert written(find(change.record, [name])) == written(find(record, [name]))
            if late and policy.merge_depth != 1:
                assert written(find(change.record, ["o", "w"])) == written(find(record, ["o", "w"]))
        record = change.record


@PROVED
@given(RECORDS, RECORDS, POLICIES, st.lists(st.sampled_from(["/a", "/b", "/a/b", "/a/b/a"]), min_size=1, max_size=2))
def test_existing_key_fields_stay_under_any_delta(record, delta, policy, pointers):
    """Key fields keep their values or the delta is rejected, at any depth and with any `merge_depth`."""
    keys = KeyFields(tuple(pointers))
    before = keys.only(record)
    try:
        keys.protect(record, delta, nulls_missing=policy.null_policy == "ignore", merge_depth=policy.merge_depth)
    except RecordRejected as error:
        assert error.reason == "key_mismatch"  # noqa: PT017
        return
    change = merge(record, delta, policy)
    for pointer in pointers:
        path = pointer[1:].split("/")
        if old := find(before, path):
            assert written(find(change.record, path)) == written(old)


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
