"""The delta of a conflated interval has the touched paths with their values at the end of the interval."""

import itertools
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.merge import apply_delta, conflated_delta, strictly_equal, touch
from processor.values.kinds import MISSING


def fold(delivered, *updates):
    """Touch every update of an interval, one by one and all at once, and return the conflated delta."""
    touched, at_once = {}, {}
    for update in updates:
        touch(touched, delivered, [update])
    touch(at_once, delivered, updates)
    assert at_once == touched
    return conflated_delta(delivered, updates[-1], touched)


def test_a_value_that_changed_back_is_still_sent():
    """A value that changed and changed back within the interval is sent: the specification's example."""
    start = {"id": 7, "state": "open", "note": "-", "ref": 1}
    between = {"id": 7, "state": "held", "note": "x", "ref": 1}
    assert fold(start, between, dict(start)) == ({"state": "open", "note": "-"}, [])


def test_only_the_touched_member_of_an_object_is_sent():
    """Only the touched members of an object are sent, since touching is by path."""
    assert fold({"o": {"x": 1, "y": 2}}, {"o": {"x": 5, "y": 2}}, {"o": {"x": 1, "y": 2}}) == ({"o": {"x": 1}}, [])


def test_a_path_that_was_removed_and_set_again_is_sent():
    """A path that was removed and set again within the interval is sent, also if its name needs escaping."""
    assert fold({"o": {"a/b": 1, "y": 2}}, {"o": {"y": 2}}, {"o": {"a/b": 1, "y": 2}}) == ({"o": {"a/b": 1}}, [])


def test_a_touched_path_that_is_gone_at_the_end_is_removed():
    """A path that was set and removed within the interval is sent as removed only if the reader has it."""
    assert fold({"a": 1}, {"a": 1, "b": 2}, {"a": 1}) == ({}, [])
    assert fold({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1}) == ({}, ["/b"])


def test_an_object_that_was_a_scalar_in_between_is_sent_in_full():
    """An object that was a scalar in between is sent in full, and its missing members are removed."""
    assert fold({"o": {"x": 1, "y": 2}}, {"o": 5}, {"o": {"x": 1}}) == ({"o": {"x": 1}}, ["/o/y"])


def test_touching_below_an_object_touched_in_full_adds_nothing():
    """An object that was touched in full stays so: later partial changes do not reduce the members that are sent."""
    start = {"o": {"x": 1, "y": 2}}
    assert fold(start, {"o": 5}, {"o": {"x": 3, "y": 2}}) == ({"o": {"x": 3, "y": 2}}, [])
    assert fold(start, {"o": {"x": 3, "y": 2}}, {"o": 5}, start) == (start, [])


def test_changes_of_several_updates_below_an_object_add_up():
    """Changes of several updates below an object add up: every changed member is sent, even if it changed back."""
    start = {"o": {"x": 1, "y": 2, "z": 3}}
    between = {"o": {"x": 5, "y": 2, "z": 3}}, {"o": {"x": 1, "y": 6, "z": 3}}
    assert fold(start, *between, start) == ({"o": {"x": 1, "y": 2}}, [])


def test_a_record_deleted_in_between_is_sent_in_full():
    """A record that was deleted and published again within the interval is sent in full."""
    start = {"id": 1, "o": {"x": 1}, "gone": 2}
    assert fold(start, None, {"id": 1, "o": {"x": 1}}) == ({"id": 1, "o": {"x": 1}}, ["/gone"])


def test_values_that_python_calls_equal_are_different():
    """The values 1, 1.0 and True differ: a change from one to another and back is a touch."""
    for other in (1.0, True, "1"):
        assert fold({"a": 1, "b": [1]}, {"a": other, "b": [other]}, {"a": 1, "b": [1]}) == ({"a": 1, "b": [1]}, [])


def test_a_change_to_an_equal_value_and_back_is_a_touch():
    """A change to a value that Python calls equal is a touch, also among members that stay the same."""
    for start in ({"a": 1, "b": "x"}, {"a": 1, "b": True}, {"a": 1, "b": 2}, {"a": True, "b": None}):
        other = start | {"a": 1.0 if start["a"] is True else True}
        assert fold(start, other, dict(start), dict(start)) == ({"a": start["a"]}, [])
        assert fold(start, dict(start), {name: start[name] for name in start if name != "a"}, dict(start)) == (
            {"a": start["a"]},
            [],
        )


@pytest.mark.parametrize(
    ("value", "other"), [(0.0, -0.0), ([1], [True]), ([1.0], [1]), (Decimal("1.0"), Decimal("1.00"))]
)
def test_a_value_written_differently_is_another_value(value, other):
    """Values that are written differently are different, even if Python calls them and their types equal."""
    start = {"a": value, "b": 2}
    assert fold(start, {"a": other, "b": 2}, dict(start)) == ({"a": value}, [])


def test_an_empty_record_in_between_is_not_a_deleted_one():
    """An empty record in between is not a deleted one: its missing members are touched, an object stays one."""
    assert fold({"o": {}, "a": 1}, {}, {"o": {}, "a": 1}) == ({"o": {}, "a": 1}, [])
    assert fold({"o": {"x": 1}}, {"o": {}}, {"o": {"x": 1}}) == ({"o": {"x": 1}}, [])


def test_a_key_never_delivered_is_sent_in_full():
    """The conflated delta of a key that was never delivered is its record."""
    assert conflated_delta(None, {"id": 1, "a": None}, {"a": {}}) == ({"id": 1, "a": None}, [])


def test_the_tree_keeps_no_value_alive():
    """The tree of touched paths of a pending key holds names only and keeps no value in memory."""
    touched = {}
    touch(touched, {"a": {"b": 1, "c": 2}, "d": 3}, [{"a": {"b": ["a long value"], "c": 2}, "e": 4}])
    assert touched == {"a": {"b": {}}, "d": {}}


VALUES = st.sampled_from([None, True, 1, 1.0, "", [1], {}, {"x": 1}, {"x": 1.0, "y": {"z": 2}}, {"y": {"z": 3}}])
RECORDS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(RECORDS, st.lists(RECORDS, min_size=1, max_size=5))
def test_a_path_is_touched_if_it_changed_between_any_two_updates(delivered, updates):
    """A path is touched exactly if two neighbouring updates differ there, as a naive check of each path confirms."""
    paths = leaves(delivered)
    moved = {
        path
        for before, after in itertools.pairwise([delivered, *updates])
        for path in paths
        if not strictly_equal(at(before, path), at(after, path))
    }
    delta, removed = fold(own(delivered), *map(own, updates))
    assert written(apply_delta(own(delivered), delta, removed)) == written(updates[-1])
    for path in paths:
        if at(updates[-1], path) is not MISSING:
            assert (at(delta, path) is not MISSING) == (path in moved)


def leaves(record, path=()):
    """The paths of all values in a record that are no objects."""
    if isinstance(record, dict):
        return [leaf for name, value in record.items() for leaf in leaves(value, (*path, name))]
    return [path]


def own(record):
    """A copy that shares no value with the original."""
    return json.loads(json.dumps(record))


def at(record, path):
    """The value at a path, or MISSING."""
    for name in path:
        record = record.get(name, MISSING) if isinstance(record, dict) else MISSING
    return record


def written(record):
    """A record as text, in which 1 and 1.0 differ, with sorted members."""
    return json.dumps(record, sort_keys=True)
