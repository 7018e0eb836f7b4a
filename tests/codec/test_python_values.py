"""Every Python value that is published is read back as the same value, or is refused with its path."""

import datetime as dt
import json
import math
import tempfile
import uuid
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import bson
import msgpack
import pytest
from google.protobuf import descriptor_pb2, text_format
from hypothesis import HealthCheck, given, note, settings

from processor.client import Message
from processor.codec import CodecOptions, load_codec
from processor.codec.avro.schema import _MARKED, marked
from processor.codec.json import JsonCodec
from processor.codec.json_value import json_value, to_json_line
from processor.codec.message_pack import MsgpackCodec
from processor.config import SchemaConfig
from processor.gateway.sessions.frames import FrameEncoder
from tests.codec.avro_world import file_codec, record
from tests.codec.python_values import VALUES, LikeNumpy, Point, Side, reads_as
from tests.codec.specimens import BSON, JSON, MSGPACK, codec_of, nested, orders

_DIRECTORY = tempfile.TemporaryDirectory(prefix="sowstream-python-values-")
FILES = Path(_DIRECTORY.name)
PROVED = settings(
    max_examples=500,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

REFUSED = object()
TEXTS_ALONE = {"nvfix", "fix", "xml"}
PLACES = {
    "json": lambda value: {"id": 1, "v": value},
    "msgpack": lambda value: {"id": 1, "v": value},
    "bson": lambda value: {"id": 1, "v": value},
    "nvfix": lambda value: {"id": "1", "v": value},
    "fix": lambda value: {"11": "1", "55": value},
    "xml": lambda value: {"order": {"@id": "1", "v": value}},
    "composite-local": lambda value: {"0": {"id": 1, "v": value}},
    "composite-global": lambda value: {"0": {"id": 1, "v": value}},
    "binary": lambda value: value,
}
"""For each type without a schema, a message that contains a value."""


def read_back(codec, message):
    """The value read from a message, or REFUSED if the codec raised a TypeError."""
    try:
        data = codec.encode(message)
    except TypeError:
        return REFUSED
    back = codec.decode(data)
    assert repr(codec.decode_own(data)) == repr(back)
    return back


def test_a_published_value_is_read_back_or_refused():
    """Every message type without a schema keeps each Python value, or raises a TypeError and no other error.

    A value is a part of a message, and the message itself where the type has others than objects of texts and bytes.
    """
    codecs = {name: codec_of(name) for name in PLACES}
    kept = Counter()

    @PROVED
    @given(VALUES)
    def prove(value):
        # To make a value takes longer than to write it in all types.
        for name, codec in codecs.items():
            note(name)
            message = PLACES[name](value)
            back = read_back(codec, message)
            if back is not REFUSED:
                kept[name] += 1
                assert reads_as(message, back, texts=name in TEXTS_ALONE)
                assert codec.encode_decoded(back) == codec.encode(back)
            if name not in TEXTS_ALONE and name != "binary":
                back = read_back(codec, value)
                assert back is REFUSED or reads_as(value, back)

    prove()
    assert set(kept) == set(PLACES)
    assert min(count for name, count in kept.items() if name != "binary") > 20


AVRO = record(
    ("v", ["null", "boolean", "long", "double", "bytes", "string",
           {"type": "array", "items": ["null", "double", "string", "long"]}, {"type": "map", "values": "double"}],
     None),
    ("i", "int", 0), ("f", "float", 0.0), ("d", ["null", "double"], None), ("s", "string", ""),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "A"),
    ("x", {"type": "fixed", "name": "X", "size": 3}, "abc"),
    ("decimal", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}, "\0"),
    ("date", {"type": "int", "logicalType": "date"}, 0),
    ("time", {"type": "long", "logicalType": "time-micros"}, 0),
    ("stamp", {"type": "long", "logicalType": "timestamp-millis"}, 0),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}, 0),
    ("uuid", {"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=0))),
    ("more", ["null", "Order"], None),
)  # fmt: skip
PROTO = """
name: "kinds.proto" package: "test" syntax: "proto3"
message_type {
  name: "Kinds"
  field { name: "f" number: 1 label: LABEL_OPTIONAL type: TYPE_FLOAT }
  field { name: "d" number: 2 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  field { name: "i" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "u" number: 4 label: LABEL_OPTIONAL type: TYPE_UINT64 }
  field { name: "s" number: 5 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "b" number: 6 label: LABEL_OPTIONAL type: TYPE_BYTES }
  field { name: "t" number: 7 label: LABEL_OPTIONAL type: TYPE_BOOL }
  field { name: "many" number: 8 label: LABEL_REPEATED type: TYPE_DOUBLE }
  field { name: "inner" number: 9 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.Kinds" }
  field { name: "by_n" number: 10 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.Kinds.ByNEntry" }
  nested_type {
    name: "ByNEntry"
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
    options { map_entry: true }
  }
}
"""


def kinds_codec():
    """The codec of the protobuf message above."""
    file = FILES / "kinds.pb"
    parsed = text_format.Parse(PROTO, descriptor_pb2.FileDescriptorProto())
    file.write_bytes(descriptor_pb2.FileDescriptorSet(file=[parsed]).SerializeToString())
    return load_codec("protobuf", CodecOptions(schema=SchemaConfig(file=file, message="test.Kinds")))


TEXT_FORMS = {"decimal", "date", "time", "stamp", "local", "uuid"}
"""Avro fields that also accept the text which `sowstream sow` displays."""


def test_avro_keeps_or_refuses_every_value_of_every_field():
    """Each field of a schema with all types keeps each Python value that it takes."""
    codec = file_codec(AVRO, FILES)

    @settings(PROVED, max_examples=100)
    @given(VALUES)
    def prove(value):
        for field in (field["name"] for field in AVRO["fields"]):
            note(field)
            if field in TEXT_FORMS and isinstance(value, str | float | int):
                continue  # Accepted as the displayed form of a value.
            back = read_back(codec, {field: value})
            if back is not REFUSED:
                assert codec.encode_decoded(back) == codec.encode(back)
                assert field == "more" or reads_as(value, back[field], typed=True, short=field == "f")

    prove()


def test_protobuf_keeps_or_refuses_every_value_of_every_field():
    """Each field of a message with all types keeps each Python value that it takes."""
    codec = kinds_codec()

    @settings(PROVED, max_examples=100)
    @given(VALUES)
    def prove(value):
        for field in ("f", "d", "i", "u", "s", "b", "t", "many", "inner", "by_n"):
            note(field)
            back = read_back(codec, {field: value})
            if back is not REFUSED and field != "inner":
                assert reads_as(value, back[field], typed=True, short=field == "f")

    prove()


@pytest.mark.parametrize(("field", "value"), [
    ("f", 1e39), ("f", 2**24 + 1), ("d", 2**53 + 1), ("d", 10**300 + 1), ("s", b"a"), ("t", 1), ("by_n", {"01": "x"}),
    ("by_n", {1: "x"}), ("many", [1.0, True]),
])  # fmt: skip
def test_protobuf_refuses_values_that_a_field_would_change(field, value):
    """A protobuf field that would change the published value is a TypeError with its path."""
    with pytest.raises(TypeError, match=f"^/{field}"):
        kinds_codec().encode({field: value})


@pytest.mark.parametrize(("field", "value"), [
    ("f", 1e39), ("f", 2**24 + 1), ("d", 2**53 + 1), ("i", 2**31), ("time", dt.time(10, tzinfo=dt.UTC)),
    ("stamp", dt.datetime(2024, 2, 29, 0, 0, 0, 1, dt.UTC)), ("decimal", Decimal("0.0001")), ("s", "\ud800"),
    ("local", dt.datetime(2024, 2, 29, tzinfo=dt.UTC)), ("decimal", math.nan),
])  # fmt: skip
def test_avro_refuses_values_that_a_field_would_change(field, value):
    """An Avro field that would change the published value is a TypeError."""
    with pytest.raises(TypeError, match=r"\w"):
        file_codec(AVRO, FILES).encode({field: value})


NOT_NUMBERS = [math.nan, math.inf, -math.inf, LikeNumpy("nan"), Decimal("NaN"), Decimal("Infinity")]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=repr)
@pytest.mark.parametrize(("name", "message", "place"), [
    ("json", lambda value: {"id": 1, "a/b": [0, {"px": value}]}, "/a~1b/1/px"),
    ("json", lambda value: {"id": 1, "px": (value,)}, "/px/0"),
    ("nvfix", lambda value: {"id": "1", "px": value}, "/px"),
    ("fix", lambda value: {"11": "1", "44": ["1", value]}, "/44"),
    ("xml", lambda value: {"order": {"@id": "1", "px": value}}, "/order/px"),
    ("composite-local", lambda value: {"0": {"id": 1, "px": value}}, "/0/px"),
])  # fmt: skip
def test_nan_and_infinity_are_refused_with_their_path(name, message, place, value):
    """NaN and the infinities of any class and at any depth are a TypeError with its path in types without them."""
    with pytest.raises(TypeError, match=rf"^{place}\b"):
        codec_of(name).encode(message(value))


@pytest.mark.parametrize("name", ["msgpack", "bson"])
@pytest.mark.parametrize("value", NOT_NUMBERS[:4], ids=repr)
def test_nan_and_infinity_are_kept_where_the_type_has_them(name, value):
    """MessagePack and BSON have NaN and the infinities as numbers of 64 bits."""
    back = codec_of(name).decode(codec_of(name).encode({"px": value}))["px"]
    assert repr(back) == repr(float(value))


LONG_NUMBERS = [2**64, -(2**63) - 1, 10**40, -(10**5000), Decimal("1.00000000000000000000001")]


@pytest.mark.parametrize("value", LONG_NUMBERS, ids=lambda value: f"{Decimal(value):.3g}")
def test_a_number_of_any_length_is_published_exactly_as_json(value):
    """An int beyond 64 bits and a Decimal with more digits than a double are written with all their digits."""
    codec = codec_of("json")
    data = codec.encode({"x": [value]})
    assert json.loads(data, parse_float=Decimal, parse_int=Decimal) == {"x": [Decimal(value)]}
    assert codec.decode(data) == {"x": [value]}
    assert codec.decode_own(data) == {"x": [value]}


@pytest.mark.parametrize("value", [
    dt.datetime(2024, 2, 29, tzinfo=dt.UTC), dt.date(2024, 2, 29), dt.time(1), uuid.UUID(int=7), Side.BUY, Point(1),
], ids=repr)  # fmt: skip
def test_json_refuses_values_that_it_would_read_as_another_type(value):
    """A value that orjson would write as another type, such as a date, UUID, enum or dataclass, is a TypeError."""
    with pytest.raises(TypeError, match=rf"^/a/0: {type(value).__name__} is not a JSON value"):
        codec_of("json").encode({"a": [value]})


@pytest.mark.parametrize(("name", "value", "problem"), [
    ("msgpack", {"a": [({1: 2},)]}, "/a/0/0: the map key 1 is no text"),
    ("msgpack", {"a": [1, 2**64]}, "/a/1: MessagePack cannot write it"),
    ("bson", {"a": {"b": Decimal(1)}}, "/a/b: .*Decimal"),
    ("bson", {"a": dt.datetime(2024, 2, 29)}, "/a: .* would be read back as "),  # noqa: DTZ001
    ("bson", {"a": {"$x\0": 1}}, "/a: .*"),
])  # fmt: skip
def test_the_path_of_an_unsupported_value_is_named(name, value, problem):
    """The error of a codec begins with the JSON Pointer of the value that is at fault."""
    with pytest.raises(TypeError, match="^" + problem):
        codec_of(name).encode(value)


@pytest.mark.parametrize("name", ["json", "msgpack", "bson"])
def test_a_value_too_deep_to_be_read_is_not_written(name):
    """A publisher cannot write a value that every worker would reject as too deep."""
    codec = codec_of(name, max_depth=20)
    value = 1
    for _ in range(19):
        value = [value]
    assert codec.decode(codec.encode({"a": value})) == {"a": value}
    with pytest.raises(TypeError, match="nested deeper than 20"):
        codec.encode({"a": [value]})
    recursive = {}
    recursive["a"] = [recursive]
    with pytest.raises(TypeError, match=r"\w"):
        codec.encode(recursive)


def test_a_recursive_avro_record_that_would_be_too_deep_is_not_written():
    """A recursive Avro value beyond `max_depth` is not written, although its schema allows any depth."""
    codec = file_codec(AVRO, FILES, max_depth=20)
    value = {"i": 1}
    for _ in range(19):
        value = {"more": value}
    assert codec.decode(codec.encode(value))["more"]["more"]["i"] == 0
    with pytest.raises(TypeError, match="nested deeper than 20"):
        codec.encode({"more": value})


def test_values_that_came_from_messages_are_written_without_checks():
    """`encode_decoded` writes the same bytes as `encode` without the checks that only values from Python code need."""
    value = {"t": msgpack.Timestamp(1, 2), "a": [1.5, None, {"b": b"x"}]}
    assert MsgpackCodec().encode_decoded(value) == MsgpackCodec().encode(value)
    document = {"t": bson.DatetimeMS(2**60), "d": bson.Decimal128("1.0")}
    assert codec_of("bson").encode_decoded(document) == codec_of("bson").encode(document)


WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (b"\xff\0", '"/wA="'),
        (bson.Binary(b"\xff", 128), '"/w=="'),
        (WHEN, '"2026-01-02T03:04:05.678000+00:00"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (msgpack.Timestamp(0, 5), '"1970-01-01T00:00:00.000000005Z"'),
        (msgpack.Timestamp(-61_000_000_000), '"0036-12-26T11:33:20Z"'),
        (msgpack.Timestamp(-62_135_596_800, 1), '"0001-01-01T00:00:00.000000001Z"'),
        (msgpack.Timestamp(1), '"1970-01-01T00:00:01Z"'),
        (msgpack.Timestamp(2**62), '"Timestamp(seconds=4611686018427387904, nanoseconds=0)"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (bson.Decimal128("1.00"), '"1.00"'),
        (bson.ObjectId(b"0" * 12), '"303030303030303030303030"'),
        (bson.Int64(7), "7"),
        (Decimal("18446744073709551616.10"), "18446744073709551616.10"),
        (Decimal("NaN"), '"NaN"'),
        (bson.MinKey(), '"MinKey()"'),
        (float("nan"), "null"),
        (marked(float, 2)(1.5), "1.5"),
        (marked(float, 2)("nan"), "null"),
        (marked(int, 2)(-(2**63)), "-9223372036854775808"),
        (marked(str, 2)("a"), '"a"'),
        (marked(bytes, 2)(b"\xff\0"), '"/wA="'),
        (marked(Decimal, 2)("1.50"), "1.50"),
        (marked(dict, 2)({"b": marked(float, 1)(0.5)}), '{"b":0.5}'),
    ],
    ids=repr,
)
def test_a_value_without_a_json_type_is_text(value, line):
    """Values without a JSON type are displayed as text: base64, ISO 8601, identifiers; numbers keep all digits."""
    assert to_json_line(value) == line
    assert Message("sow", "t", "k", {"a": [value]}).to_json().endswith('"data":{"a":[' + line + "]}}")
    assert Message("sow", "t", "k", {"a": value}).data_json() == '{"a":' + line + "}"


@pytest.mark.parametrize("kind", sorted(_MARKED, key=repr))
def test_every_writer_of_json_shows_the_value_of_a_branch_of_a_union(kind):
    """A value that is marked with its branch is written as one that is not: lines, frames and messages."""
    plain = {dict: {"b": 1}, str: "a", bytes: b"a", int: 7, float: 1.5, Decimal: Decimal("1.50")}[kind]
    value, expected = {"a": [marked(kind, 2)(plain)]}, {"a": [plain]}
    assert to_json_line(value) == to_json_line(expected)
    for write in (Message.to_json, Message.data_json, FrameEncoder()._message):
        assert write(Message("sow", "t", "k", value)) == write(Message("sow", "t", "k", expected))
    if kind is not bytes:
        assert repr(json_value(value)) == repr(json_value(expected))
        assert JsonCodec().encode(value) == JsonCodec().encode(expected)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(nested(JSON | MSGPACK | BSON) | orders())
def test_every_value_is_displayed(value):
    """Every value is displayed as one line of valid JSON, never as an error."""
    line = to_json_line(value)
    assert "\n" not in line
    json.loads(line)
