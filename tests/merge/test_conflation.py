"""The delta of a conflated interval: touched paths, with their values at its end."""

from processor.merge import conflated_delta, diff, touch


def fold(delivered, *updates):
    """Touch every update of an interval in turn and tell the result."""
    touched, record = {}, delivered
    for update in updates:
        touch(touched, diff(record, update))
        record = update
    return conflated_delta(delivered, record, touched)


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
    """Once whole, always whole: the members that the later update did not name are told too."""
    touched = {}
    touch(touched, diff({"o": {"x": 1}}, {"o": 5}))
    touch(touched, diff({"o": {"x": 1, "y": 2}}, {"o": {"x": 3, "y": 2}}))
    assert touched == {"o": {}}


def test_a_key_never_delivered_is_told_whole():
    """Without a delivered record the delta is the record."""
    assert conflated_delta(None, {"id": 1, "a": None}, {"a": {}}) == ({"id": 1, "a": None}, [])


def test_the_tree_keeps_no_value_alive():
    """A pending key's tree holds names only, so that waiting costs no record."""
    touched = {}
    touch(touched, diff({}, {"a": {"b": ["a long value"]}, "c": {}}))
    assert touched == {"a": {"b": {}}, "c": {}}
