"""The merge rules, each proved by a test in the order of the specification."""

import json
from copy import deepcopy
from decimal import Decimal
from itertools import product
from pathlib import Path

import json_merge_patch
import pytest
from hypothesis import given

from processor.errors import RecordRejected
from processor.merge import KeyFields, MergePolicy, compile_merge, diff, insert, merge, remove_paths
from processor.record import Change
from processor.values.pointer import names
from tests.merge.test_law import PROVED, RECORDS, TWO_RECORDS, written

DEFAULT = MergePolicy()
POLICIES = [MergePolicy(nulls, depth) for nulls in ("ignore", "set", "remove") for depth in (None, 1, 2)]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rule_1_a_field_replaces_and_a_new_one_is_appended(policy):
    """A field of a delta replaces the record's in its place, and a new field comes last."""
    change = merge({"a": 1, "b": 2, "c": 3}, {"d": 4, "b": 5}, policy)
    assert list(change.record.items()) == [("a", 1), ("b", 5), ("c", 3), ("d", 4)]
    assert change.delta == {"d": 4, "b": 5}
    assert change.removed == []


@pytest.mark.parametrize("nulls", ["ignore", "set", "remove"])
def test_rule_2_an_object_merges_into_an_object_to_any_depth(nulls):
    """Objects merge field by field to any depth under every null policy, and the delta has only the differences."""
    record = {"a": {"b": {"c": {"x": 1, "y": 2}}, "k": 0}}
    change = merge(record, {"a": {"b": {"c": {"y": 3, "z": 4}}}}, MergePolicy(nulls))
    assert change.record == {"a": {"b": {"c": {"x": 1, "y": 3, "z": 4}}, "k": 0}}
    assert change.delta == {"a": {"b": {"c": {"y": 3, "z": 4}}}}


def test_rule_2_merge_depth_1_replaces_nested_objects_as_they_are():
    """With `merge_depth: 1` a nested object is replaced in full with its nulls; `removed` names its lost fields."""
    record = {"id": 1, "a": {"x": 1, "y": {"z": 2}}, "gone": 1}
    change = merge(record, {"a": {"x": 1, "n": None}, "gone": None}, MergePolicy("remove", 1))
    assert change == Change({"id": 1, "a": {"x": 1, "n": None}}, {"a": {"n": None}}, ["/a/y", "/gone"])


def test_rule_2_merge_depth_2_merges_one_nested_level():
    """With `merge_depth: 2` objects in the record merge, and objects inside them are replaced."""
    change = merge({"a": {"x": 1, "b": {"y": 1}}}, {"a": {"b": {"z": 2}}}, MergePolicy(merge_depth=2))
    assert change == Change({"a": {"x": 1, "b": {"z": 2}}}, {"a": {"b": {"z": 2}}}, ["/a/b/y"])


def test_rule_3_arrays_are_replaced_in_full():
    """Arrays are replaced in full, as in the specification's example."""
    record = {"contents": {"packages": [{"n": "A"}, {"n": "B"}], "kept": 1}}
    change = merge(record, {"contents": {"packages": [{"n": "C"}]}}, DEFAULT)
    assert change.record == {"contents": {"packages": [{"n": "C"}], "kept": 1}}
    assert change.delta == {"contents": {"packages": [{"n": "C"}]}}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rule_3_a_value_of_another_kind_is_replaced_in_full(policy):
    """Scalars, objects and arrays replace one another, and the computed delta holds the full new value."""
    for old, new in product([1, "s", [1], {"x": 1}, None, True], [2, "t", [2], {"y": 2}, False]):
        if not (type(old) is dict and type(new) is dict):
            assert merge({"a": old}, {"a": new}, policy) == Change({"a": new}, {"a": new}, [])


@pytest.mark.parametrize("nulls", ["ignore", "set", "remove"])
def test_rule_4_an_empty_object_merges_into_an_object_as_nothing(nulls):
    """An empty object `{}` that is merged into an object changes nothing."""
    assert merge({"a": {"x": 1}}, {"a": {}}, MergePolicy(nulls)) == Change({"a": {"x": 1}}, {}, [])


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    ("old", "empty"), [(5, {}), ([1], {}), (None, {}), ([1], []), ({"x": 1}, []), ("s", ""), ({"x": 1}, "")]
)
def test_rule_4_an_empty_value_replaces_anything_else(policy, old, empty):
    """`{}` replaces a value that is no object; `[]` and the empty string replace any value."""
    assert merge({"a": old}, {"a": empty}, policy) == Change({"a": empty}, {"a": empty}, [])


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rule_5_a_missing_field_is_unchanged(policy):
    """A field that the delta does not name is unchanged, and an empty delta changes nothing."""
    assert merge({"a": 1, "b": None}, {}, policy) == Change({"a": 1, "b": None}, {}, [])


def test_rule_6_null_is_ignored_by_default():
    """Under `ignore` a null counts as missing at any depth of an old or a new object, but not in an array."""
    change = merge(
        {"a": 1, "o": {"x": 1}}, {"a": None, "o": {"x": None, "y": 2}, "n": {"p": None, "q": [None]}}, DEFAULT
    )
    assert change.record == {"a": 1, "o": {"x": 1, "y": 2}, "n": {"q": [None]}}
    assert change.delta == {"o": {"y": 2}, "n": {"q": [None]}}


@pytest.mark.parametrize("nulls", ["ignore", "remove"])
@pytest.mark.parametrize("old", [{}, {"a": 1}, {"a": {}}], ids=str)
def test_rule_6_nulls_below_the_levels_that_merge_are_values(nulls, old):
    """Nulls below the levels that merge are values, in a new field, in place of a scalar or in an object."""
    delta = {"a": {"gone": None, "kept": {"n": None}}}
    assert merge(old, delta, MergePolicy(nulls, merge_depth=2)).record == {"a": {"kept": {"n": None}}}


def test_rule_6_null_is_a_value_under_set():
    """Under `set` a null is stored, once: storing it again changes nothing."""
    delta = {"a": None, "o": {"x": None}, "n": {"p": None}}
    change = merge({"a": 1, "o": {"x": 1}}, delta, MergePolicy("set"))
    assert change.record == change.delta == {"a": None, "o": {"x": None}, "n": {"p": None}}
    assert merge(change.record, {"a": None, "o": {"x": None}, "n": {"p": None}}, MergePolicy("set")).delta == {}


def test_rule_6_null_removes_under_remove():
    """Under `remove` a null removes the field and is reported as an escaped pointer, if the field existed."""
    delta = {"a/b": None, "o": {"~x": None, "none": None}, "n": {"p": None}}
    change = merge({"a/b": 1, "o": {"~x": 1, "y": 2}}, delta, MergePolicy("remove"))
    assert change == Change({"o": {"y": 2}, "n": {}}, {"n": {}}, ["/a~1b", "/o/~0x"])


@pytest.mark.parametrize(
    ("policy", "record"),
    [
        (MergePolicy("ignore"), {"b": {"d": [None]}}),
        (MergePolicy("remove"), {"b": {"d": [None]}}),
        (MergePolicy("set"), {"a": None, "b": {"c": None, "d": [None]}}),
        (MergePolicy("ignore", 1), {"b": {"c": None, "d": [None]}}),
    ],
    ids=str,
)
def test_rule_6_the_first_delta_of_a_key_loses_its_nulls_by_policy(policy, record):
    """The first delta of a key is stored without its nulls at the levels that merge, by policy, and is the change."""
    change = insert({"a": None, "b": {"c": None, "d": [None]}}, policy)
    assert change == Change(record, record, [])


def test_rule_6_header_remove_removes_fields_after_the_merge():
    """Header `remove` removes paths after the merge; missing paths are not reported, and the diff is exact."""
    old = {"id": 1, "a": 1, "o": {"x/y": 1, "z": 2}, "s": 5}
    record = merge({**deepcopy(old), "null": None}, {"a": 2, "new": 3}, DEFAULT).record
    assert remove_paths(record, ["/a", "/new", "/o/x~1y", "/nope/x", "/", "/a", "/null/x"], ["/id"]) == [
        "/a", "/new", "/o/x~1y"
    ]  # fmt: skip
    assert diff({**old, "null": None}, record).removed == ["/o/x~1y", "/a"]


@pytest.mark.parametrize(
    "pointers", ["/a", {"a": 1}, None, [1], ["a"], ["/a", "/~2"], [""], ["/id"], ["/o"], ["/o/key"]], ids=str
)
def test_rule_6_a_bad_header_remove_is_rejected_and_removes_nothing(pointers):
    """A header `remove` that is no list of pointers, or would remove a key field, is rejected as `bad_header`."""
    record = {"id": 1, "a": 1, "o": {"key": 2}}
    with pytest.raises(RecordRejected) as caught:
        remove_paths(record, pointers, ["/id", "/o/key"])
    assert caught.value.reason == "bad_header"
    assert record == {"id": 1, "a": 1, "o": {"key": 2}}


@pytest.mark.parametrize(
    ("pointer", "problem"),
    [
        ("/legs/0", "leads into the array at /legs, which is one value; send the array without the element"),
        ("/legs/-", "leads into the array at /legs"),
        ("/o/legs/0/px", "leads into the array at /o/legs"),
        ("/s/deeper", "leads below /s, which is a value of type int and no object"),
        ("/o/a~1b/c", "leads below /o/a~1b, which is a value of type str"),
    ],
)
def test_rule_6_a_pointer_that_cannot_be_followed_is_rejected_with_its_place(pointer, problem):
    """A pointer into an array or below a scalar is a `bad_header`, and the good pointers of its list remove nothing."""
    record = {"id": 1, "a": 1, "legs": [{"px": 1}], "s": 5, "o": {"legs": [{"px": 1}], "a/b": "x"}}
    before = deepcopy(record)
    with pytest.raises(RecordRejected) as caught:
        remove_paths(record, ["/a", pointer], ["/id"])
    assert caught.value.reason == "bad_header"
    assert problem in caught.value.detail
    assert record == before


def test_rule_6_the_full_record_is_no_field_to_remove():
    """The pointer of the full record in header `remove` is rejected, also for a record without key fields."""
    record = {"a": 1}
    with pytest.raises(RecordRejected, match="bad_header: header remove: '' is the whole record"):
        remove_paths(record, ["/a", ""], ())
    assert record == {"a": 1}


def test_rule_6_nulls_in_a_full_publish_are_stored():
    """A full publish keeps its nulls, and a new null is a change."""
    assert diff({"a": 1}, {"a": None, "b": None}) == Change({"a": None, "b": None}, {"a": None, "b": None}, [])


def test_rule_7_a_delta_that_disagrees_with_its_key_is_rejected():
    """A delta that disagrees with its key is rejected as `key_mismatch` with the field and both texts."""
    with pytest.raises(RecordRejected, match=r"key_mismatch: /id is '8', but the record's key says '7'"):
        KeyFields(("/id",)).check(b"7", {"id": 8, "a": 1})


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    ("pointers", "delta"),
    [(("/id",), {"id": "7", "x": 1}), (("/o/id",), {"o": {"x": 1}}), (("/o/id", "/id"), {"id": "7", "o": {"id": "7"}})],
)
def test_rule_7_key_fields_never_change_through_a_delta(policy, pointers, delta):
    """Key fields keep value and type, at the top and nested, also where the delta replaces their object."""
    record, keys = {"id": 7, "o": {"id": 7, "y": 1}}, KeyFields(pointers)
    delta = deepcopy(delta)
    keys.protect(record, delta, nulls_missing=policy.null_policy == "ignore", merge_depth=policy.merge_depth)
    change = merge(record, delta, policy)
    assert repr(keys.only(change.record)) == repr(keys.only({"id": 7, "o": {"id": 7}}))
    assert not any(pointer in change.removed for pointer in pointers)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rule_7_a_delta_cannot_take_the_object_of_a_key_field_away(policy):
    """A scalar, an array or an effective null in place of a key field's object is rejected as `key_mismatch`."""
    keys, nulls_missing = KeyFields(("/o/id",)), policy.null_policy == "ignore"
    for value in (5, "s", [], *([] if nulls_missing else [None])):
        with pytest.raises(RecordRejected, match=r"key_mismatch: o is .*; the key field /o/id is inside it"):
            keys.protect({"o": {"id": 7}}, {"o": value}, nulls_missing=nulls_missing)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rule_8_a_repeated_value_is_no_change(policy):
    """A delta that repeats the record's values gives an empty change; counting the update is up to the caller."""
    record = {"a": 1, "o": {"y": 2, "x": [1, {"p": 1, "q": 2}]}}
    assert merge(record, {"a": 1, "o": {"x": [1, {"p": 1, "q": 2}], "y": 2}}, policy).delta == {}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_an_array_whose_objects_have_another_order_of_members_is_a_change(policy):
    """An array whose objects have their members in another order is a change, since arrays are sent in full."""
    record, delta = {"o": {"x": [[{"p": 1, "q": 2}]]}}, {"o": {"x": [[{"q": 2, "p": 1}]]}}
    for change in (diff(deepcopy(record), deepcopy(delta)), merge(deepcopy(record), deepcopy(delta), policy)):
        assert json.dumps(change.delta) == json.dumps(change.record) == json.dumps(delta)


FOUR_VALUES = [1, 1.0, True, "1"]
STRICTLY_DIFFERENT = [
    *((one, other) for one in FOUR_VALUES for other in FOUR_VALUES if one is not other),
    (0, False),
    (0.0, -0.0),
    (Decimal("1.10"), Decimal("1.1")),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rule_9_type_matters(policy):
    """Values that Python calls equal but JSON writes differently are a change, at the top, in objects and in arrays."""
    for wrap in (lambda v: v, lambda v: [v], lambda v: [{"p": [v]}], lambda v: {"q": v}):
        for old, new in STRICTLY_DIFFERENT:
            change = merge({"a": wrap(old)}, {"a": wrap(new)}, policy)
            assert repr(change.record) == repr(change.delta) == repr({"a": wrap(new)})
            assert repr(diff({"a": wrap(old)}, {"a": wrap(new)}).delta) == repr({"a": wrap(new)})


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_rule_10_a_value_that_a_delta_does_not_touch_is_the_same_object(policy):
    """Values that a delta does not touch, such as integers beyond 64 bits and long decimals, stay the same objects."""
    exact = {"big": Decimal(2**70), "fine": Decimal("0.12345678901234567890"), "in": [Decimal("1.10")]}
    record = {"a": 1, "o": {"a": 1}, **exact}
    merged = merge(record, {"a": 2}, policy).record
    assert all(merged[name] is value for name, value in exact.items())


def test_deltas_meet_the_record_one_after_another():
    """Merging does not compose: a scalar between two objects discards the first, as in the specification's example."""
    fold = compile_merge(DEFAULT)
    record = {"a": {"y": 2}}
    fold(record, {"a": 5})
    assert fold(record, {"a": {"x": 1}}) == Change({"a": {"x": 1}}, {"a": {"x": 1}}, [])


def test_a_publish_that_empties_an_object_names_the_removed_path():
    """A publish that empties an object reports only the removed path: `{"a": {"y": 2}}` → `{"a": {}}` removes /a/y."""
    assert diff({"a": {"y": 2}}, {"a": {}}) == Change({"a": {}}, {}, ["/a/y"])


def test_the_first_record_of_a_key_is_all_delta():
    """The change of a key's first record is the record itself, the same object, so it is encoded once."""
    record = {"id": 1, "a": None}
    change = diff(None, record)
    assert change.delta is change.record is record
    assert change.removed == []


def test_a_merge_depth_of_nothing_is_refused():
    """A `merge_depth` of 0 is refused, since not even the record would merge."""
    with pytest.raises(ValueError, match="at least 1"):
        MergePolicy(merge_depth=0)


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
