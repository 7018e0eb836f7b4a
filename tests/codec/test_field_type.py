"""Message types declare the kinds of values of a field, and merge rules that do not fit are refused at the start."""

import json

import pytest

from processor.codec import CodecOptions, load_codec
from processor.codec.avro.schema import Schema, field_type
from processor.errors import ConfigurationError
from processor.values.kinds import FieldType
from tests.builtin.merging import merging
from tests.codec.avro_world import record
from tests.codec.specimens import SPECIMENS, codec_of

SCHEMA = record(
    ("id", "string"),
    ("qty", ["null", "long"], None),
    ("px", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("raw", "bytes"),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("uid", {"type": "string", "logicalType": "uuid"}),
    ("side", {"type": "enum", "name": "Side", "symbols": ["A"]}),
    ("ok", "boolean"),
    ("tags", {"type": "array", "items": "string"}),
    ("any", ["null", "double", "string", {"type": "array", "items": "int"}], None),
    ("counts", {"type": "map", "values": {"type": "map", "values": "int"}}),
    ("book", ["null", record(("bid", "double"), ("next", ["null", "Book"], None), name="Book")], None),
    ("either", ["Book", record(("bid", "long"), name="Other")]),
)


@pytest.mark.parametrize(
    ("pointer", "kinds"),
    [
        ("/id", {"text"}),
        ("/qty", {"number"}),
        ("/px", {"number"}),
        ("/raw", {"bytes"}),
        ("/day", {"time"}),
        ("/at", {"time"}),
        ("/uid", {"other"}),
        ("/side", {"text"}),
        ("/ok", {"boolean"}),
        ("/tags", {"array"}),
        ("/any", {"number", "text", "array"}),
        ("/counts", {"object"}),
        ("/counts/a", {"object"}),
        ("/counts/a/b", {"number"}),
        ("/book", {"object"}),
        ("/book/bid", {"number"}),
        ("/book/next/next/bid", {"number"}),
        ("/either", {"object"}),
        ("/either/bid", set()),
        ("/nope", set()),
        ("/id/x", set()),
        ("/tags/0", set()),
        ("/counts/a/b/c", set()),
    ],
)
def test_an_avro_schema_declares_the_kinds_of_every_field(pointer, kinds):
    """An Avro schema declares the kinds of every field, with logical types and unions; other values have none."""
    path = tuple(pointer.split("/")[1:])
    assert field_type(Schema(json.dumps(SCHEMA)), path) == FieldType(frozenset(kinds))


@pytest.mark.parametrize("name", sorted(SPECIMENS))
def test_types_without_a_schema_restrict_no_field(name):
    """Any kind of value may be in any field; JSON alone holds every number."""
    if not name.startswith("composite"):
        assert codec_of(name).field_type(("a", "b")) == FieldType(None, any_number=name in ("json", "json-schema"))


def test_a_composite_asks_its_parts():
    """A composite asks its parts for the type of a field; a path begins with the number of a part.

    Inside a part of bytes, and beyond the last part, there is no field.
    """
    codec = load_codec("composite-local", CodecOptions(parts=("json", "msgpack", "binary")))
    assert codec.field_type(("0", "a")) == FieldType(None, any_number=True)
    assert codec.field_type(("1", "a")) == codec.field_type(("0",)) == FieldType()
    assert codec.field_type(("2",)) == FieldType(frozenset(("bytes",)))
    assert (
        codec.field_type(("2", "a"))
        == codec.field_type(("3", "a"))
        == codec.field_type(("a",))
        == FieldType(frozenset())
    )


GROUP_BY_TAGS = [{"by": "/tags", "fields": ["/qty"]}]
GROUP_OF_QYT = [{"by": "/at", "fields": ["/qyt"]}]


@pytest.mark.parametrize(
    ("settings", "detail"),
    [
        (
            {"merge_rules": {"/ok": "sum"}},
            "rule sum at /ok: the schema allows boolean there; sum is for number or text",
        ),
        (
            {"merge_rules": {"/qty": "append"}},
            "rule append at /qty: the schema allows number there; append is for array",
        ),
        ({"merge_rules": {"/tags": "max"}}, "rule max at /tags: the schema allows array there"),
        ({"merge_rules": {"/nope": "first"}}, "rule first at /nope: the schema of the messages has no field /nope"),
        ({"sequence_groups": GROUP_BY_TAGS}, "group by /tags: the schema allows array there, which has no order"),
        ({"sequence_groups": GROUP_OF_QYT}, "group by /at: the schema of the messages has no field /qyt"),
    ],
    ids=str,
)
def test_a_rule_that_the_schema_forbids_is_refused_at_the_start(settings, detail, tmp_path):
    """A rule or group on a field of the wrong kind, or on a field that does not exist, is a configuration error."""
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(SCHEMA))
    with pytest.raises(ConfigurationError) as caught:
        merging(message_type="avro", schema=str(path), **settings)
    assert detail in str(caught.value)


def test_rules_that_fit_the_schema_start(tmp_path):
    """Every built-in rule and a group are accepted on fields of their kinds."""
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(SCHEMA))
    rules = {
        "/qty": "sum",
        "/any": "append",
        "/tags": "union",
        "/px": "max",
        "/uid": "min",
        "/book/bid": "sum",
        "/ok": "first",
    }
    merging(
        message_type="avro", schema=str(path), merge_rules=rules, sequence_groups=[{"by": "/at", "fields": ["/side"]}]
    )


def test_a_double_beyond_a_float_is_refused_where_the_schema_has_a_float(tmp_path):
    """A number too large for a float of 32 bits is a TypeError, and is not written as infinity."""
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(record(("id", "string"), ("v", ["null", "float"], None), ("w", "float", 0.0))))
    driver = merging(message_type="avro", schema=str(path))
    for field in ("v", "w"):
        with pytest.raises(TypeError, match=f"/{field}: 1e\\+39 is beyond the largest float of 32 bits"):
            driver._codec.encode({"id": "7", field: 1e39})
    assert driver._codec.decode(driver._codec.encode({"id": "7", "v": float("inf")}))["v"] == float("inf")
