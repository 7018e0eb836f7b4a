"""The law of delta replay and other properties hold for any sequence of commands."""

import contextlib
import json
from copy import deepcopy
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import RecordRejected
from processor.merge import (
    MergePolicy,
    apply_delta,
    conflated_delta,
    diff,
    insert,
    merge,
    remove_paths,
    strictly_equal,
    touch,
)
from processor.values.pointer import names

PROVED = settings(max_examples=100, deadline=None, print_blob=True)

# Few names and few values, so that records meet; names that need escaping; values that Python confuses.
NAMES = st.sampled_from(["a", "b", "a/b", "~", "~1", ""])
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "1", 2**63, Decimal(1), Decimal("1.0"), Decimal(2**64)]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=4)
ALIKE = [[True, 1, 1.0, "1", Decimal(1), Decimal("1.0")], [False, 0, 0.0, -0.0, "", None]]


def confused(value, random):
    """A copy in which some scalars are replaced by others that Python calls equal, and some members are reordered."""
    if type(value) is dict:
        members = [(name, confused(member, random)) for name, member in value.items()]
        if random.random() < 0.3:
            random.shuffle(members)
        return dict(members)
    if type(value) is list:
        return [confused(member, random) for member in value]
    for line in ALIKE:
        if any(written(value) == written(other) for other in line) and random.random() < 0.3:
            return random.choice(line)
    return value


def written(value):
    """A value as text in which 1, 1.0 and true differ, and 0.0 and -0.0.

    The order of members counts inside arrays, which a delta carries in full, and not outside of them.
    """
    return json.dumps(_sorted(value), default=repr)


def _sorted(value):
    if type(value) is not dict:
        return value
    return {name: _sorted(member) for name, member in sorted(value.items())}


RANDOMS = st.randoms(use_true_random=False)
TWO_RECORDS = st.tuples(RECORDS, RECORDS) | st.builds(lambda one, by: (one, confused(one, by)), RECORDS, RANDOMS)
TWO_VALUES = st.builds(lambda one, by: (one, confused(one, by)), VALUES, RANDOMS)
POINTERS = st.lists(NAMES, min_size=1, max_size=3).map(
    lambda path: "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)
)
POLICIES = st.builds(MergePolicy, st.sampled_from(["ignore", "set", "remove"]), st.sampled_from([None, 1, 2]))
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), RECORDS),
        st.tuples(st.just("delta_publish"), RECORDS),
        st.tuples(st.just("remove"), st.tuples(RECORDS, st.lists(POINTERS, max_size=3))),
        st.tuples(st.just("sow_delete"), st.none()),
    ),
    max_size=8,
)


def execute(record, command, body, policy):
    """Apply a command as the delta merge does, by public functions only."""
    old, body = deepcopy(record), deepcopy(body)
    if command == "publish":
        return diff(old, body)
    if command == "delta_publish":
        return insert(body, policy) if record is None else merge(old, body, policy)
    delta, pointers = body
    merged = (insert(delta, policy) if record is None else merge(deepcopy(record), delta, policy)).record
    with contextlib.suppress(RecordRejected):  # A path into an array or below a scalar: here the delta remains.
        remove_paths(merged, pointers, [])
    return diff(old, merged)


def expected(record, delta, nulls, depth):
    """The merge rules in a naive form: a new record, no shared values, no speed."""
    result = deepcopy(record)
    for name, new in delta.items():
        old = result.get(name)
        if new is None and nulls == "ignore":
            continue
        if new is None and nulls == "remove":
            result.pop(name, None)
        elif type(new) is dict and depth != 1:
            below = depth and depth - 1
            result[name] = expected(old if type(old) is dict else {}, new, nulls, below)
        else:
            result[name] = deepcopy(new)
    return result


@PROVED
@given(COMMANDS, POLICIES)
def test_delta_replay_equals_the_record_after_every_command(commands, policy):
    """The law: replayed from nothing, a key's deltas in order give the record after every command."""
    record = replayed = None
    for command, body in commands:
        if command == "sow_delete":
            record = replayed = None
            continue
        change = execute(record, command, body, policy)
        record = change.record
        before = written(change.delta)
        replayed = apply_delta(replayed, change.delta, change.removed)
        assert written(replayed) == written(record)
        assert written(change.delta) == before, "the delta stays the subscriber's"


@PROVED
@given(TWO_RECORDS, POLICIES)
def test_the_merge_agrees_with_the_naive_rules(records, policy):
    """The fast merge gives the result of the naive rules, with the members in the same order."""
    record, delta = records
    wanted = expected(record, delta, policy.null_policy, policy.merge_depth)
    change = merge(deepcopy(record), deepcopy(delta), policy)
    assert list(change.record) == list(wanted) or policy.merge_depth is not None
    assert written(change.record) == written(wanted)
    assert written(insert(deepcopy(delta), policy).record) == written(
        expected({}, delta, policy.null_policy, policy.merge_depth)
    )


@PROVED
@given(TWO_RECORDS, POLICIES)
def test_the_change_of_a_merge_is_the_diff(records, policy):
    """The change that a merge returns is the exact difference between the record before and after it."""
    record, delta = records
    change = merge(deepcopy(record), deepcopy(delta), policy)
    exact = diff(record, change.record)
    assert written(change.delta) == written(exact.delta)
    assert sorted(change.removed) == sorted(exact.removed)


@PROVED
@given(RECORDS, RECORDS, POLICIES)
def test_a_delta_twice_is_a_delta_once(record, delta, policy):
    """Merging the same delta a second time changes nothing."""
    once = merge(deepcopy(record), deepcopy(delta), policy).record
    again = merge(deepcopy(once), deepcopy(delta), policy)
    assert written(again.record) == written(once)
    assert (again.delta, again.removed) == ({}, [])


@PROVED
@given(RECORDS, RECORDS, POLICIES)
def test_a_merge_keeps_members_that_the_delta_does_not_name(record, delta, policy):
    """Members that a delta does not name stay the same objects in the same order, at any depth that merges."""
    members = dict(unnamed(record, delta, policy.merge_depth))
    order = list(record)
    merged = merge(record, delta, policy).record
    assert merged is record
    for path, value in members.items():
        [merged_value] = find(merged, path)
        assert merged_value is value
    kept = [name for name in merged if name in order]
    assert kept == [name for name in order if name in merged]
    assert set(merged) <= {*order, *delta}
    assert list(merged)[: len(kept)] == kept, "new fields come last"


def unnamed(record, delta, depth, path=()):
    """The members of a record that a delta does not name: their paths, and the objects themselves."""
    for name, value in record.items():
        if name not in delta:
            yield (*path, name), value
        elif type(value) is type(delta[name]) is dict and depth != 1:
            yield from unnamed(value, delta[name], depth and depth - 1, (*path, name))


@PROVED
@given(TWO_RECORDS)
def test_a_full_publish_replaces_any_record(records):
    """A full publish keeps nothing of the previous record, and comparing changes neither record."""
    old, new = records
    before = written(old), written(new)
    change = diff(old, new)
    assert change.record is new
    assert (written(old), written(new)) == before
    assert written(apply_delta(deepcopy(old), change.delta, change.removed)) == written(new)


@PROVED
@given(TWO_VALUES)
def test_a_diff_is_empty_only_where_both_would_be_written_alike(values):
    """A diff is empty exactly if both values are written alike.

    Different are 1, 1.0, true, "1", each spelling of a Decimal, 0.0 and -0.0, at any depth.
    """
    old, new = values
    change = diff({"a": old}, {"a": new})
    assert (change.delta == {} and change.removed == []) == (written(old) == written(new)) == strictly_equal(old, new)


@PROVED
@given(RECORDS)
def test_the_diff_of_equal_records_is_empty(record):
    """The diff of a record and its copy is empty."""
    change = diff(record, deepcopy(record))
    assert (change.delta, change.removed) == ({}, [])


@PROVED
@given(st.none() | RECORDS, COMMANDS, POLICIES)
def test_a_conflated_delta_changes_the_delivered_record_into_the_final_one(delivered, commands, policy):
    """The law of conflation: the one delta of an interval changes the delivered record into the last update's."""
    record, touched = deepcopy(delivered), {}
    for command, body in commands:
        if command != "sow_delete":
            record = deepcopy(execute(record, command, body, policy).record)
            if delivered is not None:
                touch(touched, delivered, [record])
    if record is None:
        return
    before = written(record), written(delivered)
    delta, removed = conflated_delta(delivered, record, touched)
    assert written(apply_delta(deepcopy(delivered), delta, removed)) == written(record)
    assert (written(record), written(delivered)) == before
    assert removed == ([] if delivered is None else sorted(removed, key=diff(delivered, record).removed.index))


def leaves(delta, path=()):
    """The paths that a change names, down to values that are no objects or empty ones."""
    for name, value in delta.items():
        if type(value) is dict and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def find(record, path):
    """The value at a path as a list of one, or an empty list if the path does not exist."""
    for name in path:
        if type(record) is not dict or name not in record:
            return []
        record = record[name]
    return [record]


@PROVED
@given(RECORDS, st.lists(RECORDS, max_size=4))
def test_a_conflated_delta_contains_every_touched_path_that_is_left(delivered, updates):
    """A conflated delta contains every touched path that still exists, also one that changed back."""
    record, touched, changed = delivered, {}, set()
    for update in [*updates, delivered]:
        change = diff(record, update)
        touch(touched, delivered, [update])
        changed.update(leaves(change.delta), map(names, change.removed))
        record = update
    delta, _ = conflated_delta(delivered, record, touched)
    for path in changed:
        assert written(find(delta, path)) == written(find(record, path))
