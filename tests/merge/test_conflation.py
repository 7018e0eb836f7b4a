"""The delta of a conflated interval: touched paths, with their values at its end."""

import itertools
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.merge import apply_delta, conflated_delta, strictly_equal, touch
from processor.values.equality import MISSING


def fold(delivered, *updates):
    """Touch every update of an interval, which may be in turn or at once, and tell the result."""
    touched, at_once = {}, {}
    for update in updates:
        touch(touched, delivered, [update])
    touch(at_once, delivered, updates)
    assert at_once == touched
    return conflated_delta(delivered, updates[-1], touched)


def test_a_value_that_came_back_is_still_sent():
    """The spec's example: state and note changed and came back, ref never changed."""
    start = {"id": 7, "state": "open", "note": "-", "ref": 1}
    between = {"id": 7, "state": "held", "note": "x", "ref": 1}
    assert fold(start, between, dict(start)) == ({"state": "open", "note": "-"}, [])


def test_only_the_touched_member_of_an_object_is_sent():
    """Touching is by path: the other members of the object stay silent."""
    assert fold({"o": {"x": 1, "y": 2}}, {"o": {"x": 5, "y": 2}}, {"o": {"x": 1, "y": 2}}) == ({"o": {"x": 1}}, [])


def test_a_removed_path_that_came_back_is_sent():
    """A member removed and set again in the interval was touched, also where its name needs escaping."""
    assert fold({"o": {"a/b": 1, "y": 2}}, {"o": {"y": 2}}, {"o": {"a/b": 1, "y": 2}}) == ({"o": {"a/b": 1}}, [])


def test_a_touched_path_that_is_gone_at_the_end_is_removed():
    """Set and removed within the interval: nothing, unless the reader has it; then it is removed."""
    assert fold({"a": 1}, {"a": 1, "b": 2}, {"a": 1}) == ({}, [])
    assert fold({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1}) == ({}, ["/b"])


def test_an_object_that_was_a_scalar_in_between_is_sent_whole():
    """Replaced whole and back: every member is told, and those that are gone are removed."""
    assert fold({"o": {"x": 1, "y": 2}}, {"o": 5}, {"o": {"x": 1}}) == ({"o": {"x": 1}}, ["/o/y"])


def test_touching_below_what_was_touched_whole_adds_nothing():
    """Once whole, always whole: the members that the later update did not change are told too."""
    start = {"o": {"x": 1, "y": 2}}
    assert fold(start, {"o": 5}, {"o": {"x": 3, "y": 2}}) == ({"o": {"x": 3, "y": 2}}, [])
    assert fold(start, {"o": {"x": 3, "y": 2}}, {"o": 5}, start) == (start, [])


def test_what_several_updates_touched_below_an_object_adds_up():
    """One moved x, the next y, and both came back: both are told, and z is not."""
    start = {"o": {"x": 1, "y": 2, "z": 3}}
    between = {"o": {"x": 5, "y": 2, "z": 3}}, {"o": {"x": 1, "y": 6, "z": 3}}
    assert fold(start, *between, start) == ({"o": {"x": 1, "y": 2}}, [])


def test_what_was_deleted_in_between_is_sent_whole():
    """Every path went and came back."""
    start = {"id": 1, "o": {"x": 1}, "gone": 2}
    assert fold(start, None, {"id": 1, "o": {"x": 1}}) == ({"id": 1, "o": {"x": 1}}, ["/gone"])


def test_values_that_python_calls_equal_are_told_apart():
    """1, 1.0 and True are three values: to go from one to another and back is a touch."""
    for other in (1.0, True, "1"):
        assert fold({"a": 1, "b": [1]}, {"a": other, "b": [other]}, {"a": 1, "b": [1]}) == ({"a": 1, "b": [1]}, [])


def test_what_only_looked_the_same_in_between_was_touched():
    """Among members that stand still, and back at the end; also where both types are in the record."""
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
def test_what_is_written_differently_is_another_value(value, other):
    """Python calls them equal, and their types too."""
    start = {"a": value, "b": 2}
    assert fold(start, {"a": other, "b": 2}, dict(start)) == ({"a": value}, [])


def test_an_empty_record_in_between_is_not_a_deleted_one():
    """What it has not is touched; an object that was delivered stays an object."""
    assert fold({"o": {}, "a": 1}, {}, {"o": {}, "a": 1}) == ({"o": {}, "a": 1}, [])
    assert fold({"o": {"x": 1}}, {"o": {}}, {"o": {"x": 1}}) == ({"o": {"x": 1}}, [])


def test_a_key_never_delivered_is_told_whole():
    """Without a delivered record the delta is the record."""
    assert conflated_delta(None, {"id": 1, "a": None}, {"a": {}}) == ({"id": 1, "a": None}, [])


def test_the_tree_keeps_no_value_alive():
    """A pending key's tree holds names only, so that waiting costs no record."""
    touched = {}
    touch(touched, {"a": {"b": 1, "c": 2}, "d": 3}, [{"a": {"b": ["a long value"], "c": 2}, "e": 4}])
    assert touched == {"a": {"b": {}}, "d": {}}


VALUES = st.sampled_from([None, True, 1, 1.0, "", [1], {}, {"x": 1}, {"x": 1.0, "y": {"z": 2}}, {"y": {"z": 3}}])
RECORDS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(RECORDS, st.lists(RECORDS, min_size=1, max_size=5))
def test_a_path_is_touched_if_it_changed_between_any_two_updates(delivered, updates):
    """The plain reading of the rule, told path by path: each change between neighbours, and no other path."""
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
    """The paths of everything in a record that is no object: what an object holds is what is touched."""
    if isinstance(record, dict):
        return [leaf for name, value in record.items() for leaf in leaves(value, (*path, name))]
    return [path]


def own(record):
    """A copy that shares nothing."""
    return json.loads(json.dumps(record))


def at(record, path):
    """The value at a path, or MISSING."""
    for name in path:
        record = record.get(name, MISSING) if isinstance(record, dict) else MISSING
    return record


def written(record):
    """As text, in which 1 and 1.0 differ; members in order."""
    return json.dumps(record, sort_keys=True)
