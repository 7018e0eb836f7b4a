"""The key of a record: its text, and bodies that disagree with it."""

from decimal import Decimal

import pytest

from processor.errors import ConfigurationError, RecordRejected
from processor.merge import KeyFields

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
    ],
)
def test_a_scalar_is_its_text(value, text):
    """A string is itself, an integer its digits, a boolean its JSON word; also below the top."""
    assert ONE.text({"x": 0, "id": value}) == text
    assert NESTED.text({"order": {"a/b": value}}) == text


@pytest.mark.parametrize("keys", [ONE, NESTED, SEVERAL], ids=lambda keys: str(keys.pointers))
@pytest.mark.parametrize("value", [None, 1.5, 1.0, [], {}, Decimal("1.5")], ids=repr)
def test_another_value_is_no_key(keys, value):
    """Null, decimals, objects and arrays are rejected as `missing_key`, naming the field."""
    with pytest.raises(RecordRejected) as caught:
        keys.text({"id": value, "order": {"a/b": value, "line": value}})
    assert caught.value.reason == "missing_key"
    assert keys.pointers[0] in caught.value.detail


@pytest.mark.parametrize("keys", [ONE, NESTED, SEVERAL], ids=lambda keys: str(keys.pointers))
@pytest.mark.parametrize("record", [{}, {"order": 5}, {"order": {}}, {"order": [{"line": 1}]}], ids=repr)
def test_a_missing_field_is_no_text(keys, record):
    """Without the field, or one of several, or an object on the way to it, there is no key in the body."""
    assert keys.text(record) is None


def test_several_fields_are_a_compact_array_of_texts():
    """Every text is a JSON string, unescaped beyond what JSON asks for."""
    assert SEVERAL.text({"id": 7, "order": {"line": 'é"'}}) == '["7","é\\""]'
    assert SEVERAL.text({"id": 7}) is None


def test_only_keeps_the_key_fields_where_they_are():
    """The object of the key fields alone, nested as in the record; those that are missing stay missing."""
    record = {"id": 7, "order": {"line": 1, "x": 2}, "y": 3}
    assert SEVERAL.only(record) == {"id": 7, "order": {"line": 1}}
    assert ONE.only(record) == {"id": 7}
    assert ONE.only({"y": 3}) == {}
    assert KeyFields(("/o/a", "/o/b")).only({"o": {"a": 1, "b": 2, "c": 3}}) == {"o": {"a": 1, "b": 2}}


def test_a_delta_record_has_its_key_fields_first():
    """Key fields, then changed paths; a nested key merges with its object, and the delta is not touched."""
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
        (SEVERAL, b'[ "7", "1" ]', {"id": 7}),
        (SEVERAL, b"not an array", {"a": 1}),
    ],
)
def test_a_body_that_agrees_with_its_key_passes(keys, key, body):
    """Key fields that say what the key says, and any that are left out."""
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
    """`key_mismatch`, with the field and both texts."""
    with pytest.raises(RecordRejected) as caught:
        keys.check(key, body)
    assert caught.value.reason == "key_mismatch"
    assert detail in caught.value.detail


def test_a_null_key_field_counts_as_left_out_only_where_nulls_do():
    """Under the null policy `ignore` a delta's null is as if missing; anywhere else it is no key."""
    ONE.check(b"7", {"id": None}, nulls_missing=True)
    with pytest.raises(RecordRejected, match="missing_key: /id is null"):
        ONE.check(b"7", {"id": None})


@pytest.mark.parametrize("pointers", [(), ("",), ("id",), ("/id", "/~")], ids=str)
def test_a_key_that_is_no_list_of_pointers_is_a_configuration_error(pointers):
    """Found before anything is started."""
    with pytest.raises(ConfigurationError):
        KeyFields(pointers)
