"""Avro messages are read by the writer's and the topic's schema; deltas, frames and errors follow from both."""

import contextlib
import datetime as dt
import json
import sys
from decimal import Decimal
from uuid import UUID

import pytest

from processor.codec import CodecOptions, load_codec
from processor.codec.avro.codec import SCHEMA_ID_HEADER, AvroCodec
from processor.codec.avro.schema import marked
from processor.codec.json_value import to_json_line
from processor.config import SchemaConfig
from processor.errors import ConfigurationError, RecordRejected
from tests.codec.avro_world import World, file_codec, plain, record

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
ADDRESS = record(("zip", "string"), ("street", "string", "?"), name="Address")
ORDER = record(
    ("id", "long"),
    ("qty", "int", 1),
    ("price", PRICE, "\x01"),
    ("note", ["null", "string"], None),
    ("address", ["null", ADDRESS], None),
    ("tags", {"type": "array", "items": "string"}, []),
)
DEEP = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":'
    + '{"type":"array","items":' * 5000
    + '"int"'
    + "}" * 5001
    + "]}"
)


def doubling(levels, *default):
    """A record with two fields of one type, which has two of the next one, and so on: few bytes, many paths."""
    inner = record(("v", "long", 0), name="R0")
    for level in range(levels):
        inner = record(("a", inner, *default), ("b", f"R{level}", *default), name=f"R{level + 1}")
    return record(("id", "string"), ("x", [inner, "null"], *default))


def nested(levels):
    """A record with records in it, each in a union."""
    inner = "long"
    for level in range(levels):
        inner = ["null", record(("v", inner), name=f"R{level}")]
    return record(("id", "string"), ("x", inner))


WHOLE = {
    "id": 7,
    "qty": 2,
    "price": Decimal("1.50"),
    "note": "n",
    "address": {"zip": "8", "street": "s"},
    "tags": ["t"],
}


def refused(reason, text=""):
    """Expect a rejection for this reason with this text in its sentence."""
    return pytest.raises(RecordRejected, match=f"^{reason}: .*{text}")


def test_a_field_that_the_writer_does_not_know_has_its_default():
    """A field that is missing from the writer's schema gets its default.

    Bytes and decimals get theirs too. Each record has its own copy: a change to it does not show in other records.
    """
    world = World(ORDER)
    codec = world.codec()
    message = world.framed(record(("id", "int")), {"id": 7})
    expected = {"id": 7, "qty": 1, "price": Decimal("0.01"), "note": None, "address": None, "tags": []}
    first = codec.decode(message)
    assert first == expected
    first["tags"].append("mine")
    assert codec.decode(message) == expected


def test_a_field_that_the_reader_does_not_know_is_left_out():
    """A field that is missing from the reader's schema is dropped from publishes and deltas, as by any Avro reader."""
    world = World(ORDER)
    message = world.framed(
        record(("id", "long"), ("colour", "string"), ("qty", "int")), {"id": 1, "colour": "red", "qty": 3}
    )
    assert "colour" not in world.codec().decode(message)
    assert world.codec().decode_command(message, [], is_delta=True) == {"id": 1, "qty": 3}


def test_an_alias_maps_the_old_name_in_publishes_deltas_and_pointers():
    """An alias maps the old field name to the new one, in bodies and in the pointers of header `fields`."""
    reader = record(("id", "long"), ("amount", "int", 0))
    reader["fields"][1]["aliases"] = ["qty"]
    world = World(reader)
    message = world.framed(record(("id", "long"), ("qty", "int")), {"id": 1, "qty": 3})
    assert world.codec().decode(message) == {"id": 1, "amount": 3}
    fields = [("fields", b'["/qty"]')]
    assert world.codec().decode_command(message, fields, is_delta=True) == {"amount": 3}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", 5, 5),
        ("int", "double", 5, 5.0),
        ("long", ["null", "float"], 5, 5.0),
        (["null", "int"], "long", 5, 5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", b"e", "e"),
        (
            "long",
            {"type": "long", "logicalType": "timestamp-millis"},
            1,
            dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC),
        ),
        (PRICE, {**PRICE, "scale": 3}, Decimal("1.25"), Decimal("1.250")),
        (
            {"type": "int", "logicalType": "time-millis"},
            {"type": "long", "logicalType": "time-micros"},
            dt.time(1, 2),
            dt.time(1, 2),
        ),
    ],
)
def test_a_type_is_promoted(writer, reader, value, expected):
    """Types are promoted by Avro's resolution, and to other units or scales of a logical type where the value fits."""
    world = World(record(("id", "long"), ("x", reader)))
    decoded = world.codec().decode(world.framed(record(("id", "long"), ("x", writer)), {"id": 1, "x": value}))["x"]
    assert repr(decoded) == repr(expected)


@pytest.mark.parametrize(
    ("writer", "reader", "value"),
    [
        ("string", "int", "5"),
        ("double", "long", 5.0),
        (["null", "int"], "int", None),
        (PRICE, {**PRICE, "scale": 1}, Decimal("1.25")),
        ({"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}, dt.date(2020, 1, 1)),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
    ],
)
def test_a_value_that_does_not_fit_is_a_schema_mismatch_that_names_the_field(writer, reader, value):
    """A value that does not fit the reader's schema is rejected as `schema_mismatch` with the path of its field.

    The schemas may never fit, or this value alone does not.
    """
    world = World(record(("id", "long"), ("x", reader)))
    with refused("schema_mismatch", "/x"):
        world.codec().decode(world.framed(record(("id", "long"), ("x", writer)), {"id": 1, "x": value}))


def test_an_unknown_symbol_is_the_enums_default():
    """An unknown enum symbol is read as the enum's default, so a reader that lags behind its writers goes on."""
    reader = {"type": "enum", "name": "E", "symbols": ["A", "OTHER"], "default": "OTHER"}
    world = World(record(("x", reader)))
    message = world.framed(record(("x", {"type": "enum", "name": "E", "symbols": ["B", "A"]})), {"x": "B"})
    assert world.codec().decode(message) == {"x": "OTHER"}


def test_a_required_field_that_the_writer_lacks_is_a_schema_mismatch_in_a_publish_only():
    """A publish without a required field is rejected as `schema_mismatch`; a delta may lack any field."""
    world = World(record(("id", "long"), ("qty", "int")))
    message = world.framed(record(("id", "long")), {"id": 1})
    with refused("schema_mismatch", "/qty"):
        world.codec().decode(message)
    assert world.codec().decode_command(message, [], is_delta=True) == {"id": 1}


def test_the_path_of_a_mismatch_is_the_same_in_a_publish_and_a_delta():
    """A mismatch of a field names the field once, in a publish and in a delta."""
    world = World(record(("id", "long"), ("x", "int")))
    message = world.framed(record(("id", "long"), ("x", "string")), {"id": 1, "x": "a"})
    for is_delta in (False, True):
        with refused("schema_mismatch", "topic's: /x: string is no int"):
            world.codec().decode_command(message, [], is_delta=is_delta)


def test_stored_records_are_read_by_the_schema_of_today():
    """A worker that starts with a newer schema reads stored records with its defaults and aliases."""
    world = World(record(("id", "long"), ("qty", "int"), ("gone", "string")))
    stored = world.codec().encode({"id": 1, "qty": 2, "gone": "x"})
    newer = record(("id", "long"), ("amount", "double"), ("note", ["null", "string"], None))
    newer["fields"][1]["aliases"] = ["qty"]
    world.evolve(newer)
    assert world.codec().decode_own(stored) == {"id": 1, "amount": 2.0, "note": None}


def test_a_delta_has_the_fields_of_its_own_schema_and_no_defaults():
    """A delta holds the fields of its writer's schema to any depth, and no defaults.

    A null is kept even where the reader's type has none: its effect is decided by the null policy.
    """
    world = World(ORDER)
    part = record(
        ("id", "long"), ("qty", ["null", "int"]), ("address", record(("zip", "string"), name="Zip")), name="OrderPart"
    )
    message = world.framed(part, {"id": 7, "qty": None, "address": {"zip": "9"}})
    assert world.codec().decode_command(message, [], is_delta=True) == {"id": 7, "qty": None, "address": {"zip": "9"}}


def test_header_fields_selects_the_fields_of_a_delta():
    """Header `fields` selects the fields of a delta: a null in it is a value, others are absent."""
    world = World(ORDER)
    codec = world.codec()
    message = codec.encode(WHOLE | {"note": None})

    def taken(pointers):
        return codec.decode_command(message, [("fields", pointers)], is_delta=True)

    assert taken(b'["/id", "/note"]') == {"id": 7, "note": None}
    assert taken(b'["/address/zip", "/tags"]') == {"address": {"zip": "8"}, "tags": ["t"]}
    assert taken(b'["/address", "/address/zip"]') == {"address": WHOLE["address"]}
    assert taken(b'[""]') == WHOLE | {"note": None}
    assert taken(b"[]") == {}
    assert codec.decode_command(message, [("fields", b'["/id"]')], is_delta=False) == WHOLE | {"note": None}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[1]",
        b'["id"]',
        b'["/nobody"]',
        b'["/id/x"]',
        b'["/tags/0"]',
        b"\xff",
        b'["' + b"/a" * 300 + b'"]',
        None,
    ],
)
def test_a_header_fields_that_names_nothing_is_a_bad_header(header):
    """A header `fields` that is no JSON, no list of pointers, or leads to no field is rejected as `bad_header`."""
    codec = World(ORDER).codec()
    with refused("bad_header", "fields"):
        codec.decode_command(codec.encode(WHOLE), [("fields", header)], is_delta=True)


def test_encoded_deltas_name_their_fields_in_a_header():
    """Sowstream's deltas name their fields in header `fields`; their body is written with the derived schema.

    The derived schema is registered under the subject of the delta topic.
    """
    world = World(ORDER)
    codec = world.codec()
    delta = {"id": 7, "note": None, "address": {"zip": "9"}, "price": Decimal("2.00")}
    data, headers = codec.encode_delta(delta)
    assert headers == [("fields", b'["/id","/note","/address/zip","/price"]')]
    assert codec.decode_command(data, headers, is_delta=True) == delta
    assert int.from_bytes(data[1:5]) == world.client.get_latest_version("orders.delta-value").schema_id


def test_an_object_of_a_union_of_several_records_is_named_as_one():
    """An object without a branch, as of a plug-in, has one pointer in header `fields` where it replaces whole."""
    either = ["null", record(("no", "string"), name="Card"), record(("iban", "string"), name="Iban")]
    codec = World(
        record(("id", "string"), ("by", either, None), ("m", {"type": "map", "values": ["null", "Card", "Iban"]}, {}))
    ).codec()
    delta = {"id": "7", "by": {"iban": "X"}, "m": {"a/b": {"no": "1"}, "": {"no": "2"}}}
    data, headers = codec.encode_delta(delta)
    assert headers == [("fields", b'["/id","/by","/m/a~1b","/m/"]')]
    assert codec.decode_command(data, headers, is_delta=True) == {
        "id": "7",
        "by": marked(dict, 2)({"iban": "X"}),
        "m": {"a/b": marked(dict, 1)({"no": "1"}), "": marked(dict, 1)({"no": "2"})},
    }


def test_a_union_of_several_records_keeps_its_branch_and_is_replaced_in_full():
    """A value of a union of several records keeps its branch and is always replaced in full.

    Such values never merge, since a part of one branch would be a part of another. Absent fields get their defaults.
    """
    point = record(("x", "int"), ("y", "int", 0), name="Point")
    size = record(("x", "int"), name="Size")
    world = World(record(("id", "int"), ("what", ["null", "string", point, size])))
    codec = world.codec()
    for kind, value in ((marked(dict, 3), {"x": 1}), (marked(dict, 2), {"x": 1, "y": 2}), (str, "s")):
        message = codec.encode({"id": 1, "what": kind(value)})
        assert type(codec.decode(message)["what"]) is kind
        assert codec.decode(message)["what"] == value
    data, headers = codec.encode_delta({"what": marked(dict, 2)({"x": 1})})
    assert codec.decode_command(data, headers, is_delta=True)["what"] == {"x": 1, "y": 0}
    # A value without a branch gets the first one that has its fields.
    assert codec.decode(codec.encode({"id": 1, "what": {"x": 1, "y": 5}}))["what"] == {"x": 1, "y": 5}
    with pytest.raises(TypeError, match="/what"):
        codec.encode({"id": 1, "what": {"z": 1}})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"qty": 1}, "'id'"),
        ({"id": 1, "nobody": 1}, "nobody"),
        ({"id": "1"}, "/id: str"),
        ({"id": True}, "/id: bool"),
        ({"id": 1, "qty": 2**31}, "/qty"),
        ({"id": 2**63}, "not a value"),
        ({"id": 1, "price": Decimal("0.001")}, "/price"),
        ({"id": 1, "price": 1.005}, "/price"),
        ({"id": 1, "price": "x"}, "/price"),
        ({"id": 1, "address": {"street": "s"}}, "/address"),
        ({"id": 1, "tags": "x"}, "/tags"),
        ([], "no record"),
    ],
)
def test_a_value_outside_the_schema_is_a_type_error_with_its_path(value, text):
    """A value that the schema cannot hold is a TypeError with its path: nothing is rounded, cut or dropped silently."""
    with pytest.raises(TypeError, match=text):
        World(ORDER).codec().encode(value)


def test_a_record_displayed_as_json_can_be_published_again():
    """The JSON that is displayed for a record can be published again.

    Decimals are numbers with all their digits; dates, times and UUIDs are texts.
    """
    schema = record(
        ("price", PRICE), ("when", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
        ("day", {"type": "int", "logicalType": "date"}), ("at", {"type": "long", "logicalType": "time-micros"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
        ("uuid", {"type": "string", "logicalType": "uuid"}),
    )  # fmt: skip
    value = {
        "price": Decimal("1.10"),
        "when": dt.datetime(2026, 1, 2, 3, 4, 5, 123456, dt.UTC),
        "day": dt.date(2026, 1, 2),
        "at": dt.time(1, 2, 3, 4),
        "local": dt.datetime(2026, 1, 2),  # noqa: DTZ001 - a local time
        "uuid": UUID(int=7),
    }
    codec = World(schema).codec()
    assert codec.decode(codec.encode(json.loads(to_json_line(value)))) == value
    with pytest.raises(TypeError, match="/day"):
        codec.encode(value | {"day": "tomorrow"})


def test_a_time_of_more_than_milliseconds_is_not_cut():
    """A time with microseconds is a TypeError where the schema counts milliseconds."""
    codec = World(record(("t", {"type": "long", "logicalType": "timestamp-millis"}))).codec()
    stamp = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, dt.UTC)
    assert codec.decode(codec.encode({"t": stamp})) == {"t": stamp}
    with pytest.raises(TypeError, match="/t: 1 µs more"):
        codec.encode({"t": stamp.replace(microsecond=678001)})


def test_the_schema_of_a_message_without_frame_is_in_a_header():
    """A message without a frame is read by the schema in its header.

    Confluent's clients write a one and the GUID, or a zero and the id.
    """
    from confluent_kafka.schema_registry import header_schema_id_serializer
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    world = World(ORDER)
    serialize = AvroSerializer(
        world.client, json.dumps(ORDER), conf={"schema.id.serializer": header_schema_id_serializer}
    )
    context = SerializationContext("orders.publish", MessageField.VALUE, [])
    body = serialize(WHOLE, context)
    assert [name for name, _ in context.headers] == [SCHEMA_ID_HEADER]
    codec = world.codec()
    assert codec.decode_command(body, context.headers, is_delta=False) == WHOLE
    frame = codec.encode(WHOLE)[:5]
    assert codec.decode_command(body, [(SCHEMA_ID_HEADER, frame)], is_delta=False) == WHOLE
    guid = context.headers[0][1]
    assert codec.decode(guid + body) == WHOLE
    with refused("bad_header", SCHEMA_ID_HEADER):
        codec.decode_command(body, [(SCHEMA_ID_HEADER, b"\2abc")], is_delta=False)


def test_without_a_registry_messages_have_no_frame(tmp_path):
    """Without a registry messages have no frame and use the topic's schema; deltas use the schema derived from it."""
    codec = file_codec(ORDER, tmp_path)
    message = codec.encode(WHOLE)
    assert message == plain(ORDER, WHOLE)
    assert codec.decode_own(message) == codec.decode(message) == WHOLE
    assert codec.decode_command(message, [], is_delta=True) == WHOLE
    assert codec.decode_command(*codec.encode_delta({"note": None}), is_delta=True) == {"note": None}


def test_a_schema_from_a_file_is_registered_where_subscribers_look(tmp_path):
    """A schema from a file is registered once, under the SOW topic's subject, where subscribers look for it."""
    world = World()
    file_codec(ORDER, tmp_path)
    for _ in range(2):
        codec = world.codec(schema=SchemaConfig(file=tmp_path / "schema.avsc"))
    assert sorted(world.client.get_subjects()) == ["orders.delta-value", "orders.sow-value"]
    assert world.client.get_versions("orders.sow-value") == [1]
    assert codec.decode(codec.encode(WHOLE)) == WHOLE


def test_a_codec_that_only_reads_registers_no_schema(tmp_path):
    """A codec that only reads registers no schema, and reads stored records by the schema of their frame."""
    world = World()
    file_codec(ORDER, tmp_path)
    codec = world.codec(schema=SchemaConfig(file=tmp_path / "schema.avsc"), reads_only=True)
    assert world.client.get_subjects() == []
    message = world.framed(ORDER, WHOLE)
    assert codec.decode_own(message) == codec.decode(message) == WHOLE


def test_completing_a_record_adds_the_defaults():
    """Completing a record adds defaults to any depth, in place; a missing field without one is a schema mismatch."""
    codec = World(ORDER).codec()
    value = {"id": 1, "address": {"zip": "9"}}
    codec.complete(value)
    assert value == {
        "id": 1, "address": {"zip": "9", "street": "?"}, "qty": 1, "price": Decimal("0.01"), "note": None, "tags": []
    }  # fmt: skip
    with refused("schema_mismatch", "zip of Address"):
        codec.complete({"id": 1, "address": {}})


def test_logical_types_are_decoded_and_encoded_digit_for_digit():
    """Logical types are decoded to Python's types and encoded again with scale, microseconds and nanoseconds."""
    schema = record(
        ("d", {"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 6}),
        ("t", {"type": "long", "logicalType": "timestamp-micros"}),
        ("u", {"type": "string", "logicalType": "uuid"}),
        ("n", {"type": "long", "logicalType": "timestamp-nanos"}),
    )
    value = {
        "d": Decimal("-123456789012.345600"),
        "t": dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC),
        "u": UUID("00112233-4455-6677-8899-aabbccddeeff"),
        "n": 1_700_000_000_123_456_789,
    }
    codec = World(schema).codec()
    assert repr(codec.decode(codec.encode(value))) == repr(value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (CodecOptions(topic="orders"), "no schema; name a file"),
        (
            CodecOptions(topic="orders", schema=SchemaConfig(file="missing.avsc")),
            "missing.avsc cannot be read: No such",
        ),
        (CodecOptions(topic="orders", registry={"url": "mock://empty"}), "no subject orders.publish-value"),
        (CodecOptions(topic="orders", registry={"timeout": "1"}), "no url"),
    ],
)
def test_a_topic_without_a_schema_is_a_configuration_error_with_the_remedy(options, text):
    """An Avro topic without a schema is a configuration error at the start, with the remedy."""
    with pytest.raises(ConfigurationError, match=text):
        AvroCodec(options)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not an Avro schema"),
        ('"string"', "not the schema of a record"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "R"}]}', "contains itself, always"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}', "take room"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}', "not an Avro schema"),
        (DEEP, "too deep"),
        (json.dumps(nested(150)), "nested too deep"),
        (json.dumps(doubling(40, {})), "a default of more than 10000 records"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_is_a_configuration_error(tmp_path, text, problem):
    """A schema that cannot be used is a configuration error, also one whose few bytes would make an endless list."""
    file = tmp_path / "bad.avsc"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"bad.avsc: .*{problem}"):
        AvroCodec(CodecOptions(topic="orders", schema=SchemaConfig(file=file)))


def test_a_type_that_is_used_in_many_places_is_checked_once():
    """A schema of forty levels, whose types have two fields of the next one each, is read, or refused, at once."""
    world = World(record(("id", "string")))
    assert world.codec().decode(world.framed(doubling(40), {"id": "7", "x": None})) == {"id": "7"}


def test_a_writers_schema_that_is_nested_too_deep_is_refused():
    """A publisher's schema that is nested deeper than it can be compared with the topic's is a schema_mismatch."""
    world = World(record(("id", "string"), ("x", record(("v", ["null", "R"]), name="R"))))
    codec = world.codec()
    for levels in range(100, 200, 10):
        message = world.framed(nested(levels), {"id": "7", "x": {"v": None}})
        with contextlib.suppress(RecordRejected):
            codec.decode(message)
    with refused("schema_mismatch", "nested too deep"):
        codec.decode(message)


def test_a_writers_schema_of_many_mismatches_is_refused():
    """The comparison with the topic's schema ends, also where each mismatch is found by many paths."""
    deep = record(("c", "string"), name="R0")
    for level in range(40):
        deep = record(("a", ["long", deep]), ("b", ["long", f"R{level}"]), ("c", "string"), name=f"R{level + 1}")
    topic = record(("a", ["long", "R"], 0), ("b", ["long", "R"], 0), ("c", "long", 0), name="R")
    world = World(record(("id", "string"), ("x", ["null", topic], None)))
    with refused("schema_mismatch", "in too many places"):
        world.codec().decode(world.framed(record(("id", "string"), ("x", ["null", deep])), {"id": "7", "x": None}))


@pytest.mark.parametrize("package", ["fastavro", "confluent_kafka.schema_registry"])
def test_a_missing_package_is_a_configuration_error_with_the_install_command(monkeypatch, package):
    """A missing package of the codec or the registry's client is a configuration error with the install command."""
    # It is imported again here, and the former one is in its place afterwards.
    monkeypatch.setattr("processor.codec.avro", sys.modules["processor.codec.avro"])
    for module in [name for name in sys.modules if name.startswith("processor.codec.avro")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'sowstream\[avro\]'"):
        load_codec("avro", CodecOptions(topic="orders", registry={"url": "http://localhost"}))
