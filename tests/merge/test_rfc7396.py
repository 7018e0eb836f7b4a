"""The examples of JSON Merge Patch (RFC 7396) hold under `null_policy: remove`."""

import json
from pathlib import Path

import pytest

from processor.merge import MergePolicy, insert, merge

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
