"""JSON Merge Patch against another's implementation, the package json-merge-patch, on random records and patches.

Results are compared strictly, as text. Of the other's two functions only `create_patch` compares values, with Python's
`==`: to it 1, 1.0 and true are one value, so a patch of its making may leave such a change out, and ours may not.
"""

from copy import deepcopy

import json_merge_patch
from hypothesis import given

from processor.merge import MergePolicy, diff, insert, merge
from processor.values.pointer import names
from tests.merge.test_law import PROVED, RECORDS, TWO_RECORDS, written

REMOVE = MergePolicy("remove")


def without_nulls(value):
    """A value as a merge patch can make it: no member is null. Arrays stay as they are."""
    if type(value) is not dict:
        return value
    return {name: without_nulls(member) for name, member in value.items() if member is not None}


@PROVED
@given(RECORDS, RECORDS)
def test_null_policy_remove_does_what_another_merge_patch_does(record, patch):
    """The same record, in the same order of members; onto nothing too."""
    expected = json_merge_patch.merge(deepcopy(record), deepcopy(patch))
    merged = merge(deepcopy(record), deepcopy(patch), REMOVE).record
    assert written(merged) == written(expected)
    assert list(merged) == list(expected)
    assert written(insert(deepcopy(patch), REMOVE).record) == written(json_merge_patch.merge({}, deepcopy(patch)))


@PROVED
@given(TWO_RECORDS)
def test_a_diff_is_a_merge_patch_where_no_null_is_stored(records):
    """Its delta, with a null at each removed path, makes another implementation's old record the new one, strictly."""
    old, new = records[0], without_nulls(records[1])
    change = diff(old, new)
    patch = deepcopy(change.delta)
    for pointer in change.removed:
        *parents, last = names(pointer)
        inner = patch
        for name in parents:
            inner = inner.setdefault(name, {})
        inner[last] = None
    assert written(json_merge_patch.merge(deepcopy(old), patch)) == written(new)


@PROVED
@given(TWO_RECORDS)
def test_another_ones_patch_brings_the_record_to_the_new_one(records):
    """As far as that one looked: equal by Python's `==`, no closer."""
    old, new = map(without_nulls, records)
    patch = json_merge_patch.create_patch(deepcopy(old), deepcopy(new))
    assert merge(deepcopy(old), patch, REMOVE).record == new
