"""Late, out-of-order deltas and the fields they must not undo."""

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
    """A delta publish: the record after it, and how many groups were stale."""
    policy = policy or MergePolicy()
    delta = deepcopy(delta)
    stale = change(compile_rules(groups, {}, policy=policy), record, delta)
    merged = insert(delta, policy) if record is None else merge(deepcopy(record), delta, policy)
    return merged.record, stale


def test_nothing_configured_is_no_function():
    """The hot path has nothing to call."""
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
    """Newer, or as old: the group's fields and `by`. What touches no group is not asked, nor a null under `ignore`."""
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
def test_a_delta_that_is_older_or_does_not_say_leaves_the_group(delta, policy):
    """Fields and `by` keep their newer values, also where the delta replaces the object they are in."""
    record = {"ts": 5, "price": 1, "book": {"bid": 1, "n": 1}}
    assert publish(record, {**delta, "x": 2}, policy=policy) == ({**record, "x": 2}, 1)


@pytest.mark.parametrize("policy", [MergePolicy("set"), REMOVE], ids=str)
@pytest.mark.parametrize("delta", [{"ts": None}, {"book": None}, {"price": None}, {"ts": 4, "price": None}], ids=str)
def test_a_null_takes_nothing_newer_away(delta, policy):
    """A null that sets or removes is held to the same; so `by` itself cannot be taken away by a delta."""
    record = {"ts": 5, "price": 1, "book": {"bid": 1}}
    assert publish(record, delta, policy=policy) == (record, 1)
    assert publish(record, {"ts": 6, "price": None}, policy=REMOVE) == ({"ts": 6, "book": {"bid": 1}}, 0)


def test_only_the_fields_of_the_group_are_taken_out():
    """The rest of a late delta applies, inside the same object too; no empty object is left behind."""
    record = {"ts": 5, "book": {"bid": 1, "n": 1}}
    assert publish(record, {"ts": 4, "book": {"bid": 2, "n": 2}}) == ({"ts": 5, "book": {"bid": 1, "n": 2}}, 1)
    assert publish({"ts": 5}, {"ts": 4, "book": {"bid": 2}}) == ({"ts": 5}, 1)


@pytest.mark.parametrize("old", [None, {}, {"ts": None, "price": 1}, {"price": 1, "book": {"bid": 2}}], ids=str)
@pytest.mark.parametrize("delta", [{"ts": 4, "price": 3}, {"price": 3}], ids=str)
def test_where_the_record_has_no_by_everything_applies(old, delta):
    """The first update of a group, and any to a record that never had its `by`."""
    assert publish(old, delta) == ({**(old or {}), **delta}, 0)


def test_a_newer_scalar_is_not_undone_by_an_older_object():
    """What took the object's place is as new as the group: an older object does not come back."""
    record = {"ts": 5, "book": "closed"}
    assert publish(record, {"ts": 4, "book": {"bid": 2, "n": 2}}) == (record, 1)
    assert publish(record, {"ts": 6, "book": {"bid": 2}}) == ({"ts": 6, "book": {"bid": 2}}, 0)


@pytest.mark.parametrize("policy", [MergePolicy(), MergePolicy("set", 1)], ids=str)
def test_an_object_may_hold_its_own_sequence(policy):
    """`by` inside the group's one field: the object applies or not, whether it merges or is replaced."""
    record = {"quote": {"ts": 5, "bid": 1}}
    assert publish(record, {"quote": {"ts": 4, "bid": 2}}, QUOTE, policy) == (record, 1)
    assert publish(record, {"quote": {"bid": 2}}, QUOTE, policy) == (record, 1)
    assert publish(record, {"quote": {"ts": 5, "bid": 2}}, QUOTE, policy) == ({"quote": {"ts": 5, "bid": 2}}, 0)


def test_groups_are_late_each_by_itself():
    """Two groups of one delta, one of them stale: it is counted once and the other applies."""
    groups = [("/a/ts", ["/a/v"]), ("/b/ts", ["/b/v"])]
    record = {"a": {"ts": 5, "v": 1}, "b": {"ts": 5, "v": 1}}
    delta = {"a": {"ts": 4, "v": 2}, "b": {"ts": 6, "v": 2}}
    assert publish(record, delta, groups) == ({"a": {"ts": 5, "v": 1}, "b": {"ts": 6, "v": 2}}, 1)


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_in_whatever_order_deltas_come_the_newest_stands(order):
    """Deltas that each bring the whole group end alike, however they were shuffled; that is what groups are for."""
    deltas = [{"ts": ts, "price": 10 * ts, "book": {"bid": ts}} for ts in range(4)]
    record = None
    for index in order:
        record, _ = publish(record, deltas[index])
    assert record == deltas[3]


@pytest.mark.parametrize("bad", [True, {"a": 1}, [1], float("nan"), "x"], ids=repr)
def test_a_sequence_that_cannot_be_compared_rejects_the_delta(bad):
    """`schema_mismatch` with the group: for kinds without an order at once, for two kinds when they meet."""
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
def test_groups_that_cannot_be_meant_are_a_configuration_error(groups, settings, detail):
    """Found before anything is started, naming what overlaps."""
    with pytest.raises(ConfigurationError) as caught:
        compile_rules(groups, {}, **settings)
    assert detail in str(caught.value)
