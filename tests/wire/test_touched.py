"""The header `touched`: readers of the SOW topic compute the delta of the delta topic from it."""

import json
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import RecordRejected
from processor.merge import add_touched, conflated_delta, touch
from processor.wire import touched
from processor.wire.touched import touched_header, touched_paths
from tests.merge.test_law import RECORDS, written

PROVED = settings(max_examples=300, deadline=None, print_blob=True)


def fold(delivered, updates):
    """The touched tree of one interval."""
    tree = {}
    for update in updates:
        touch(tree, delivered, [update])
    return tree


def read_back(delivered, final, tree):
    """The tree that a reader of the SOW topic gets."""
    header = touched_header(delivered, final, tree)
    return touched_paths([("version", b"2"), *([] if header is None else [header])], final)


@PROVED
@given(RECORDS, st.lists(st.none() | RECORDS, max_size=4), st.booleans(), RECORDS)
def test_two_sow_records_and_the_header_make_the_delta_of_the_delta_topic(delivered, between, comes_back, other):
    """The delta computed from the header equals the one computed from the interval, for any updates in it."""
    final = deepcopy(delivered) if comes_back else other
    tree = fold(delivered, [*between, final])
    by_header = conflated_delta(delivered, final, read_back(delivered, final, tree) or {})
    assert written(by_header) == written(conflated_delta(delivered, final, tree))


@PROVED
@given(RECORDS, st.lists(RECORDS, max_size=3), st.lists(RECORDS, max_size=3))
def test_trees_of_two_intervals_add_up(delivered, first, second):
    """Two trees joined mark the same paths as one tree of all updates, and the joined one stays as it was."""
    joined, other = fold(delivered, first), fold(delivered, second)
    before = deepcopy(other)
    add_touched(joined, other)
    assert other == before
    assert conflated_delta(delivered, delivered, joined) == conflated_delta(
        delivered, delivered, fold(delivered, [*first, *second])
    )


def test_the_header_names_what_came_back_and_nothing_else():
    """A path that differs at the end is left out, as two SOW records show it; without a returned value no header."""
    delivered = {"id": 7, "state": "open", "note": "-", "ref": 1, "o": {"x/y": 1, "z": 2}}
    held = {"id": 7, "state": "held", "note": "x", "ref": 1, "o": {"x/y": 3, "z": 2}}
    name, text = touched_header(delivered, delivered | {"note": "y"}, fold(delivered, [held]))
    assert (name, json.loads(text)) == ("touched", ["/state", "/o/x~1y"])
    assert touched_header(delivered, held, fold(delivered, [held])) is None


def test_a_list_that_is_too_long_names_the_whole_record(monkeypatch):
    """Beyond the limit the header is the pointer of the record itself, and the delta carries every member."""
    monkeypatch.setattr(touched, "TOUCHED_BYTES_MAX", 20)
    delivered = {"id": 7, "first": 1, "second": 2, "third": 3}
    tree = fold(delivered, [{"id": 7, "first": 0, "second": 0}])
    assert touched_header(delivered, delivered, tree) == ("touched", b'[""]')
    assert conflated_delta(delivered, delivered, read_back(delivered, delivered, tree)) == (delivered, [])


@pytest.mark.parametrize("text", [b"{}", b'"/a"', b"[1]", b'["a"]', b'["/~"]', b"[", b"\xff", b"[" * 100_000, b"[[]]"])
def test_a_header_that_no_worker_writes_is_refused(text):
    """Anything but a JSON array of JSON Pointers is `bad_header`."""
    with pytest.raises(RecordRejected, match="bad_header: touched is"):
        touched_paths([("touched", text)], {})


def test_an_object_that_was_a_scalar_in_between_is_named_whole():
    """Its pointer is in the header though a member of it changed: the delta of the delta topic has all its members."""
    delivered, final = {"o": {"x": 1, "y": 2}}, {"o": {"x": 3, "y": 2}}
    tree = fold(delivered, [{"o": 5}, final])
    assert touched_header(delivered, final, tree) == ("touched", b'["/o"]')
    assert conflated_delta(delivered, final, read_back(delivered, final, tree)) == (final, [])
