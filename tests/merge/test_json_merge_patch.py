"""JSON Merge Patch: the examples of RFC 7396 hold, and random patches are compared with the package json-merge-patch.

Results are compared strictly, as text. Of that package's functions only `create_patch` compares values, with Python's
`==`: it takes 1, 1.0 and true for one value, so its patches may omit such a change, and Sowstream's deltas may not.
"""

import json
from copy import deepcopy
from pathlib import Path

import json_merge_patch
import pytest
from hypothesis import given

from processor.merge import MergePolicy, diff, insert, merge
from processor.values.pointer import names
from tests.merge.test_law import PROVED, RECORDS, TWO_RECORDS, written

REMOVE = MergePolicy("remove")


def without_nulls(value):
    """A value as a merge patch can create it: no member is null, and arrays stay as they are."""
    if type(value) is not dict:
        return value
    return {name: without_nulls(member) for name, member in value.items() if member is not None}


@PROVED
@given(RECORDS, RECORDS)
def test_null_policy_remove_agrees_with_another_merge_patch(record, patch):
    """Under `remove`, a merge gives the same record and member order as the other package, also onto no record."""
    expected = json_merge_patch.merge(deepcopy(record), deepcopy(patch))
    merged = merge(deepcopy(record), deepcopy(patch), REMOVE).record
    assert written(merged) == written(expected)
    assert list(merged) == list(expected)
    assert written(insert(deepcopy(patch), REMOVE).record) == written(json_merge_patch.merge({}, deepcopy(patch)))


@PROVED
@given(TWO_RECORDS)
def test_a_diff_is_a_merge_patch_where_no_null_is_stored(records):
    """A diff with a null at each removed path is a merge patch by which the other package gets the new record."""
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
def test_a_patch_of_another_package_gives_the_new_record(records):
    """A patch from the other package changes the old record into the new one, compared by Python's `==`."""
    old, new = map(without_nulls, records)
    patch = json_merge_patch.create_patch(deepcopy(old), deepcopy(new))
    assert merge(deepcopy(old), patch, REMOVE).record == new


SUITE = Path(__file__).parents[3] / "shared" / "suites" / "merge-patch.json"


def cases():
    """The test vectors whose patch is an object, as a delta always is."""
    if not SUITE.exists():
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=f"no test data at {SUITE.name}"))]
    vectors = json.loads(SUITE.read_text(encoding="utf-8"))
    return [
        pytest.param(vector, id=f"{json.dumps(vector['original'])}+{json.dumps(vector['patch'])}")
        for vector in vectors
        if isinstance(vector["patch"], dict)
    ]


@pytest.mark.parametrize("vector", cases())
def test_null_policy_remove_is_json_merge_patch(vector):
    """Original and patch give the RFC's result; an original that is no object counts as no record."""
    policy = MergePolicy("remove")
    original, patch = vector["original"], vector["patch"]
    change = merge(original, patch, policy) if isinstance(original, dict) else insert(patch, policy)
    assert json.dumps(change.record) == json.dumps(vector["result"])
