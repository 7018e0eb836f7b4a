"""The text of a record's key, and bodies that disagree with their key."""

import json
from decimal import Decimal
from uuid import UUID

import pytest
from bson import Int64, ObjectId

from processor.errors import ConfigurationError, RecordRejected
from processor.merge import KeyFields, MergePolicy, merge

ONE = KeyFields(("/id",))
NESTED = KeyFields(("/order/a~1b",))
SEVERAL = KeyFields(("/id", "/order/line"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("k", "k"),
        ("", ""),
        ("é\n", "é\n"),
        (7, "7"),
        (-7, "-7"),
        (True, "true"),
        (False, "false"),
        (2**63, "9223372036854775808"),
        (Decimal(2**64), "18446744073709551616"),
        (UUID("12345678-1234-5678-1234-56781234567A"), "12345678-1234-5678-1234-56781234567a"),
        (Int64(7), "7"),
        (Int64(-(2**63)), "-9223372036854775808"),
    ],
)
def test_a_scalar_is_its_text(value, text):
    """The key of a scalar is its text: a string itself, an integer its digits, a boolean its JSON word.

    This holds for nested fields, for several fields and in a check.
    """
    assert ONE.text({"x": 0, "id": value}) == text
    assert NESTED.text({"order": {"a/b": value}}) == text
    assert SEVERAL.text({"id": value, "order": {"line": 1}}) == json.dumps([text, "1"], ensure_ascii=False).replace(
        ", ", ","
    )
    ONE.check(text.encode(), {"id": value})
    NESTED.check(text.encode(), {"order": {"a/b": value}})


@pytest.mark.parametrize("keys", [ONE, NESTED, SEVERAL], ids=lambda keys: str(keys.pointers))
@pytest.mark.parametrize("value", [None, 1.5, 1.0, [], {}, Decimal("1.5")], ids=repr)
def test_another_value_is_no_key(keys, value):
    """Null, decimals, objects and arrays are rejected as `missing_key` with the field."""
    with pytest.raises(RecordRejected) as caught:
        keys.text({"id": value, "order": {"a/b": value, "line": value}})
    assert caught.value.reason == "missing_key"
    assert keys.pointers[0] in caught.value.detail


@pytest.mark.parametrize("keys", [ONE, NESTED, SEVERAL], ids=lambda keys: str(keys.pointers))
@pytest.mark.parametrize("record", [{}, {"order": 5}, {"order": {}}, {"order": [{"line": 1}]}], ids=repr)
def test_a_missing_field_is_no_text(keys, record):
    """A body has no key if a key field, or an object on the way to it, is missing."""
    assert keys.text(record) is None


def test_several_fields_are_a_compact_array_of_texts():
    """The key of several fields is a compact JSON array of their texts, with no more escapes than JSON requires."""
    assert SEVERAL.text({"id": 7, "order": {"line": 'é"'}}) == '["7","é\\""]'
    assert SEVERAL.text({"id": 7}) is None


def test_only_keeps_the_key_fields_where_they_are():
    """`only` returns the object of the key fields, nested as in the record; missing fields stay missing."""
    record = {"id": 7, "order": {"line": 1, "x": 2}, "y": 3}
    assert SEVERAL.only(record) == {"id": 7, "order": {"line": 1}}
    assert ONE.only(record) == {"id": 7}
    assert ONE.only({"y": 3}) == {}
    assert KeyFields(("/o/a", "/o/b")).only({"o": {"a": 1, "b": 2, "c": 3}}) == {"o": {"a": 1, "b": 2}}


def test_a_delta_record_has_its_key_fields_first():
    """A delta record has its key fields first, then the changed paths; the delta itself is not changed."""
    record, delta = {"y": 0, "id": 7, "order": {"line": 1, "x": 2}}, {"y": 3, "order": {"x": 2}}
    assert list(ONE.with_delta(record, delta)) == ["id", "y", "order"]
    assert SEVERAL.with_delta(record, delta) == {"id": 7, "order": {"line": 1, "x": 2}, "y": 3}
    assert ONE.with_delta({"y": 3}, {"y": 3}) == {"y": 3}
    assert delta == {"y": 3, "order": {"x": 2}}


@pytest.mark.parametrize(
    ("keys", "key", "body"),
    [
        (ONE, b"7", {"id": 7}),
        (ONE, b"7", {"id": "7"}),
        (ONE, b"7", {"a": 1}),
        (ONE, b"true", {"id": True}),
        (ONE, b"\xff", {}),
        (NESTED, b"x", {"order": 5}),
        (SEVERAL, b'["7","1"]', {"id": 7, "order": {"line": 1}}),
        (SEVERAL, b'["7","1"]', {"order": {"line": 1}}),
    ],
)
def test_a_body_that_agrees_with_its_key_passes(keys, key, body):
    """A body passes if its key fields agree with the key or are missing."""
    keys.check(key, body)


@pytest.mark.parametrize(
    ("keys", "key", "body", "detail"),
    [
        (ONE, b"7", {"id": 8}, "/id is '8', but the record's key says '7'"),
        (ONE, b"True", {"id": True}, "/id is 'true', but the record's key says 'True'"),
        (ONE, b"\xff", {"id": "\ufffd"}, "/id"),
        (NESTED, b"x", {"order": {"a/b": "y"}}, "/order/a~1b is 'y'"),
        (SEVERAL, b'["7","1"]', {"order": {"line": 2}}, "/order/line is '2', but the record's key says '1'"),
        (SEVERAL, b'["7"]', {"id": 7}, """/id, /order/line make the key; b'["7"]' is no JSON array of 2"""),
        (SEVERAL, b"7", {"id": 7}, "b'7' is no JSON array"),
        (SEVERAL, b"[" * 5000, {"id": 7}, "is no JSON array of 2 texts"),
    ],
)
def test_a_body_that_disagrees_with_its_key_is_rejected(keys, key, body, detail):
    """A body that disagrees with its key is rejected as `key_mismatch` with the field and both texts."""
    with pytest.raises(RecordRejected) as caught:
        keys.check(key, body)
    assert caught.value.reason == "key_mismatch"
    assert detail in caught.value.detail


def test_a_null_key_field_counts_as_left_out_only_where_nulls_do():
    """A null key field counts as missing only under the null policy `ignore`; elsewhere it is rejected."""
    ONE.check(b"7", {"id": None}, nulls_missing=True)
    with pytest.raises(RecordRejected, match="missing_key: /id is null"):
        ONE.check(b"7", {"id": None})


@pytest.mark.parametrize("pointers", [("",), ("id",), ("/id", "/~")], ids=str)
def test_a_key_that_is_no_list_of_pointers_is_a_configuration_error(pointers):
    """Key fields that are no JSON Pointers are a configuration error at the start."""
    with pytest.raises(ConfigurationError):
        KeyFields(pointers)


def test_without_key_fields_a_body_agrees_with_every_key():
    """Without key fields a body has no key text, agrees with every key, and its delta is not changed."""
    keys, record, delta = KeyFields(()), {"id": 7}, {"id": 8}
    assert keys.text(record) is None
    keys.check(b"x", record)
    keys.protect(record, delta)
    assert (keys.only(record), keys.with_delta(record, delta), delta) == ({}, {"id": 8}, {"id": 8})


def test_a_key_field_at_the_top_never_changes_through_a_delta():
    """A delta never changes a key field at the top level, not even its type."""
    for keys in (ONE, KeyFields(("/id", "/b"))):
        delta = {"id": "7", "x": 1}
        keys.protect({"id": 7}, delta)
        assert delta == {"x": 1}


@pytest.mark.parametrize("policy", [MergePolicy(nulls, depth) for nulls in ("ignore", "set") for depth in (None, 1, 2)])
@pytest.mark.parametrize("order", [{"x": 3}, {"line": 1, "x": 3}, {"line": "1", "x": 3}, {}], ids=str)
def test_a_nested_key_field_stays_when_its_object_merges_or_is_replaced(policy, order):
    """A nested key field keeps its value under every policy, with and without it in the delta."""
    record, delta = {"id": 7, "order": {"line": 1, "y": 2}}, {"order": dict(order)}
    SEVERAL.protect(record, delta, nulls_missing=policy.null_policy == "ignore", merge_depth=policy.merge_depth)
    change = merge(record, delta, policy)
    assert (change.record["id"], change.record["order"]["line"]) == (7, 1)
    assert type(change.record["order"]["line"]) is int
    assert "line" not in change.delta.get("order", {})
    assert "/order/line" not in change.removed


@pytest.mark.parametrize("value", [5, "s", [1], False, None], ids=repr)
@pytest.mark.parametrize(
    "keys", [NESTED, SEVERAL, KeyFields(("/deep/order/line",))], ids=lambda keys: str(keys.pointers)
)
def test_a_delta_that_would_take_a_nested_key_field_away_is_rejected(keys, value):
    """A delta that would remove or replace a nested key field is rejected as `key_mismatch` with the field."""
    record = {"id": 7, "order": {"a/b": 1, "line": 1}, "deep": {"order": {"line": 1}}}
    with pytest.raises(RecordRejected, match=f"key_mismatch: .*{keys.pointers[-1]}") as caught:
        keys.protect(record, {"order": value, "deep": {"order": value}}, nulls_missing=False)
    assert caught.value.reason == "key_mismatch"


def test_a_null_over_the_object_of_a_key_field_is_left_out_where_nulls_are():
    """A null over the object of a key field is dropped under the null policy `ignore`."""
    delta = {"order": None, "x": 1}
    SEVERAL.protect({"id": 7, "order": {"line": 1}}, delta, nulls_missing=True)
    assert delta == {"x": 1}


def test_a_delta_may_replace_an_object_that_holds_no_key_field_yet():
    """A delta may replace an object without a key field in it, as in a record that is keyed by Kafka only."""
    delta = {"order": 5}
    SEVERAL.protect({"id": 7, "order": {"x": 1}}, delta, nulls_missing=False)
    assert delta == {"order": 5}


def test_an_object_id_is_a_key_by_its_text():
    """A BSON object id, the usual `_id`, is a key by its text."""
    identifier = ObjectId("507f1f77bcf86cd799439011")
    assert KeyFields(("/_id",)).text({"_id": identifier}) == "507f1f77bcf86cd799439011"
    KeyFields(("/_id",)).check(b"507f1f77bcf86cd799439011", {"_id": identifier})


@pytest.mark.parametrize("key", ['["7","é"]', '["7", "é"]', '["7","\\u00e9"]', ' [ "7" ,"é" ] '])
def test_a_key_of_several_fields_has_one_spelling(key):
    """Spaces and escapes in the array of a key's fields make no other key."""
    assert SEVERAL.spelled(key) == '["7","é"]'


@pytest.mark.parametrize("key", ["7", '["7"]', '["7",1]', '["7","\\ud800"]', '["7","\\udcff"]', '["7"'])
def test_a_text_that_is_no_key_of_several_fields_stays_as_it_is(key):
    """A text that does not name each key field, such as one with half a surrogate pair, is left to the worker."""
    assert SEVERAL.spelled(key) == key
    assert KeyFields(("/id",)).spelled(key) == key
