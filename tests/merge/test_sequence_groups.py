"""Sequence groups protect fields from late deltas."""

from copy import deepcopy
from itertools import permutations

import pytest

from processor.errors import ConfigurationError, RecordRejected
from processor.merge import MergePolicy, compile_rules, insert, merge
from tests.merge.applying import change

PRICE = [("/ts", ["/price", "/book/bid"])]
QUOTE = [("/quote/ts", ["/quote"])]
REMOVE = MergePolicy("remove")


def publish(record, delta, groups=PRICE, policy=None):
    """Apply a delta publish; return the new record and the number of stale groups."""
    policy = policy or MergePolicy()
    delta = deepcopy(delta)
    stale = change(compile_rules(groups, {}, policy=policy), record, delta)
    merged = insert(delta, policy) if record is None else merge(deepcopy(record), delta, policy)
    return merged.record, stale


def test_without_rules_there_is_no_function():
    """Without groups and rules there is no function, so the hot path has nothing to call."""
    assert compile_rules([], {}) is None


@pytest.mark.parametrize(
    ("delta", "record"),
    [
        ({"ts": 6, "price": 2, "x": 2}, {"ts": 6, "price": 2, "book": {"bid": 1, "n": 1}, "x": 2}),
        ({"ts": 5, "book": {"bid": 2, "n": 2}}, {"ts": 5, "price": 1, "book": {"bid": 2, "n": 2}, "x": 1}),
        ({"ts": 6}, {"ts": 6, "price": 1, "book": {"bid": 1, "n": 1}, "x": 1}),
        ({"x": 2}, {"ts": 5, "price": 1, "book": {"bid": 1, "n": 1}, "x": 2}),
        ({"price": None, "ts": None}, {"ts": 5, "price": 1, "book": {"bid": 1, "n": 1}, "x": 1}),
    ],
    ids=str,
)
def test_a_delta_that_is_not_older_applies(delta, record):
    """A delta whose `by` is newer or equal applies; one that touches no group is not checked."""
    assert publish({"ts": 5, "price": 1, "book": {"bid": 1, "n": 1}, "x": 1}, delta) == (record, 0)


@pytest.mark.parametrize("policy", [MergePolicy(), MergePolicy("set"), REMOVE], ids=str)
@pytest.mark.parametrize(
    "delta",
    [
        {"ts": 4, "price": 2},
        {"ts": 4},
        {"price": 2},
        {"ts": None, "price": 2},
        {"ts": 4, "book": {"bid": 2}},
        {"book": {"bid": 2}},
        {"ts": 4, "book": 7},
        {"book": [1]},
    ],
    ids=str,
)
def test_a_delta_that_is_older_or_has_no_by_leaves_the_group(delta, policy):
    """A delta with an older or missing `by` does not change the group's fields, also where it replaces their object."""
    record = {"ts": 5, "price": 1, "book": {"bid": 1, "n": 1}}
    assert publish(record, {**delta, "x": 2}, policy=policy) == ({**record, "x": 2}, 1)


@pytest.mark.parametrize("policy", [MergePolicy("set"), REMOVE], ids=str)
@pytest.mark.parametrize("delta", [{"ts": None}, {"book": None}, {"price": None}, {"ts": 4, "price": None}], ids=str)
def test_a_null_removes_no_newer_field(delta, policy):
    """A late null neither sets nor removes a newer field, and a delta cannot remove `by` itself."""
    record = {"ts": 5, "price": 1, "book": {"bid": 1}}
    assert publish(record, delta, policy=policy) == (record, 1)
    assert publish(record, {"ts": 6, "price": None}, policy=REMOVE) == ({"ts": 6, "book": {"bid": 1}}, 0)


def test_only_the_fields_of_the_group_are_taken_out():
    """Only the group's fields are dropped from a late delta; the rest applies, and no empty object is left."""
    record = {"ts": 5, "book": {"bid": 1, "n": 1}}
    assert publish(record, {"ts": 4, "book": {"bid": 2, "n": 2}}) == ({"ts": 5, "book": {"bid": 1, "n": 2}}, 1)
    assert publish({"ts": 5}, {"ts": 4, "book": {"bid": 2}}) == ({"ts": 5}, 1)


@pytest.mark.parametrize("old", [None, {}, {"ts": None, "price": 1}, {"price": 1, "book": {"bid": 2}}], ids=str)
@pytest.mark.parametrize("delta", [{"ts": 4, "price": 3}, {"price": 3}], ids=str)
def test_every_delta_applies_to_a_record_without_by(old, delta):
    """Every delta applies to a record without the group's `by`, such as the first one of a group."""
    assert publish(old, delta) == ({**(old or {}), **delta}, 0)


def test_a_newer_scalar_is_not_undone_by_an_older_object():
    """A newer scalar in place of an object is not replaced by an older object."""
    record = {"ts": 5, "book": "closed"}
    assert publish(record, {"ts": 4, "book": {"bid": 2, "n": 2}}) == (record, 1)
    assert publish(record, {"ts": 6, "book": {"bid": 2}}) == ({"ts": 6, "book": {"bid": 2}}, 0)


@pytest.mark.parametrize("policy", [MergePolicy(), MergePolicy("set", 1)], ids=str)
def test_an_object_may_hold_its_own_sequence(policy):
    """A group's only field may be an object that holds `by`: it applies in full or not at all."""
    record = {"quote": {"ts": 5, "bid": 1}}
    assert publish(record, {"quote": {"ts": 4, "bid": 2}}, QUOTE, policy) == (record, 1)
    assert publish(record, {"quote": {"bid": 2}}, QUOTE, policy) == (record, 1)
    assert publish(record, {"quote": {"ts": 5, "bid": 2}}, QUOTE, policy) == ({"quote": {"ts": 5, "bid": 2}}, 0)


def test_each_group_of_a_delta_is_checked_by_itself():
    """Each group of a delta is checked by itself: a stale one is counted, and the other applies."""
    groups = [("/a/ts", ["/a/v"]), ("/b/ts", ["/b/v"])]
    record = {"a": {"ts": 5, "v": 1}, "b": {"ts": 5, "v": 1}}
    delta = {"a": {"ts": 4, "v": 2}, "b": {"ts": 6, "v": 2}}
    assert publish(record, delta, groups) == ({"a": {"ts": 5, "v": 1}, "b": {"ts": 6, "v": 2}}, 1)


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_deltas_in_any_order_leave_the_newest(order):
    """Deltas with all fields of a group give the same record in any order of arrival."""
    deltas = [{"ts": ts, "price": 10 * ts, "book": {"bid": ts}} for ts in range(4)]
    record = None
    for index in order:
        record, _ = publish(record, deltas[index])
    assert record == deltas[3]


@pytest.mark.parametrize("bad", [True, {"a": 1}, [1], float("nan"), "x"], ids=repr)
def test_a_sequence_that_cannot_be_compared_rejects_the_delta(bad):
    """A `by` value without an order, or of another kind than the record's, rejects the delta as `schema_mismatch`."""
    with pytest.raises(RecordRejected, match=r"schema_mismatch: sequence group by /ts: .* have no order"):
        publish({"ts": 5}, {"ts": bad})
    if bad != "x":
        with pytest.raises(RecordRejected, match="schema_mismatch: sequence group by /ts"):
            publish(None, {"ts": bad})


@pytest.mark.parametrize(
    ("groups", "settings", "detail"),
    [
        ([("ts", ["/a"])], {}, "sequence group by ts: 'ts' is not a JSON Pointer"),
        ([("", ["/a"])], {}, "is the whole record"),
        ([("/ts", [""])], {}, "is the whole record"),
        ([("/ts", ["/a", "/a/b"])], {}, "/a/b and /a overlap"),
        ([("/ts", ["/a"]), ("/ts2", ["/a"])], {}, "/a and /a overlap"),
        ([("/ts", ["/a"]), ("/ts", ["/b"])], {}, "/ts and /ts overlap"),
        ([("/ts", ["/a"]), ("/a", ["/b"])], {}, "/a and /a overlap"),
        ([("/a", ["/a/b"])], {}, "/a and /a/b overlap"),
        ([("/ts", ["/id"])], {"key_fields": ["/id"]}, "/id and the key field /id overlap"),
        ([("/ts", ["/o"])], {"key_fields": ["/o/id"]}, "/o and the key field /o/id overlap"),
        ([("/id", ["/a"])], {"key_fields": ["/id"]}, "the key field /id overlap"),
        ([("/ts", ["/a/b"])], {"policy": MergePolicy("set", 1)}, "/a/b is below merge_depth 1"),
        ([("/m/ts", ["/a"])], {"policy": MergePolicy("set", 1)}, "/m/ts is below merge_depth 1"),
    ],
    ids=str,
)
def test_invalid_groups_are_a_configuration_error(groups, settings, detail):
    """Invalid or overlapping groups are a configuration error at the start."""
    with pytest.raises(ConfigurationError) as caught:
        compile_rules(groups, {}, **settings)
    assert detail in str(caught.value)
