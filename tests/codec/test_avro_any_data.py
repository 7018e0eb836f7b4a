"""Avro with any data: hostile messages are rejected in time, and random records of random schemas come back."""

import datetime as dt
import json
import random
import subprocess
import sys
import tempfile
import tracemalloc
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processor.codec.avro.delta import delta_schema_text
from processor.codec.avro.schema import Schema
from processor.errors import RecordRejected
from tests.codec.avro_world import SCHEMAS, World, file_codec, record, values
from tests.codec.hostile import varint

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
EVERYTHING = record(
    ("id", "long"),
    ("text", "string"),
    ("blob", "bytes"),
    ("price", PRICE),
    ("when", {"type": "long", "logicalType": "timestamp-micros"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("uuid", {"type": "string", "logicalType": "uuid"}),
    ("word", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("list", {"type": "array", "items": "int"}),
    ("map", {"type": "map", "values": ["null", "string", "int", "Order"]}),
    ("next", ["null", "Order"]),
)
EVERYTHING["fields"].append(
    {
        "name": "tail",
        "type": ["null", record(("x", {"type": "enum", "name": "F", "symbols": ["A"]}), ("y", "F"), name="n.Tail")],
        "default": None,
    }
)
VALUE = {
    "id": 1,
    "text": "é",
    "blob": b"b",
    "price": Decimal("-2.50"),
    "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "day": dt.date(2026, 1, 2),
    "uuid": UUID(int=7),
    "word": "B",
    "list": [1, 2],
    "map": {"a": None, "b": "x", "c": 5},
    "next": None,
    "tail": None,
}
NODE = record(("id", "int"), ("next", ["null", "Node"]), ("list", {"type": "array", "items": "Node"}), name="Node")


def reason_of(codec, data, headers=None):
    """The reason for which bytes are rejected; None if they are decoded."""
    try:
        if headers is None:
            codec.decode(data)
        else:
            codec.decode_command(data, headers, is_delta=True)
    except RecordRejected as error:
        return error.reason if error.detail else "no detail"
    return None


@pytest.mark.parametrize("seed", range(3))
def test_random_and_mutated_bytes_are_a_value_or_rejected(tmp_path, seed):
    """Random, damaged and truncated bytes are decoded or rejected, and never cause another error."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    codec = file_codec(EVERYTHING, tmp_path)
    good = codec.encode(VALUE | {"next": VALUE, "tail": {"x": "A", "y": "A"}})
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data) + 1)
            data[place : place + rng.randrange(3)] = rng.randbytes(rng.choice([0, 1, 1, 5, 10]))
        sample = rng.choice(
            [bytes(data), bytes(data[: rng.randrange(len(data) + 1)]), rng.randbytes(rng.randrange(60))]
        )
        assert reason_of(codec, sample) in {None, "undecodable", "too_deep"}
        reason = reason_of(codec, sample, [("fields", b'["/id", "/next/map"]')])
        assert reason in {None, "undecodable", "too_deep", "bad_header"}


@pytest.mark.parametrize("seed", range(2))
def test_random_frames_are_rejected(seed):
    """Random frames are decoded or rejected: most are no frame, or carry the id of an unregistered schema."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    world = World(EVERYTHING)
    codec = world.codec()
    for _ in range(1000):
        data = rng.choice(
            [b"", b"\0", b"\0\0\0\0\1", b"\0" + rng.randbytes(4), b"\1" + rng.randbytes(16)]
        ) + rng.randbytes(rng.randrange(30))
        assert reason_of(codec, data) in {None, "undecodable", "schema_not_found", "too_deep"}


def test_bytes_after_the_record_are_undecodable(tmp_path):
    """Bytes after the end of the record are rejected as `undecodable`."""
    codec = file_codec(EVERYTHING, tmp_path)
    assert codec.decode(codec.encode(VALUE)) == VALUE
    assert reason_of(codec, codec.encode(VALUE) + b"\0") == "undecodable"


def test_false_lengths_cost_nothing(tmp_path):
    """An enormous announced length of a string, a block or a decimal takes no memory and no time."""
    codec = file_codec(
        record(("a", {"type": "array", "items": "string"}), ("m", {"type": "map", "values": "int"})), tmp_path
    )
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    tracemalloc.start()
    for data in (
        huge,
        huge + huge,
        b"\0" + huge,
        b"\x02" + huge,
        b"\x01" + huge,
        b"\x03\x00",
        b"\xff" * 50,
        b"\x80" * 50,
    ):
        assert reason_of(codec, data) == "undecodable"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_decimal_of_a_megabyte_is_refused_before_it_is_a_number(tmp_path):
    """A decimal of a megabyte is rejected before it becomes a number, since its digits would take minutes."""
    codec = file_codec(record(("price", PRICE)), tmp_path)
    raw = file_codec(record(("price", "bytes")), tmp_path).encode({"price": b"\x7f" * 1_000_000})
    with pytest.raises(RecordRejected, match="undecodable: /price: a decimal of 1000000 bytes"):
        codec.decode(raw)


@pytest.mark.parametrize("text", ["12345678901", "1e99", "Infinity", "-Infinity", "NaN", "sNaN", "1.234"])
def test_a_decimal_that_the_schema_does_not_hold_is_refused_with_the_value(tmp_path, text):
    """The error names the value and the type, also where Python's arithmetic gives no number."""
    codec = file_codec(record(("price", {**PRICE, "precision": 5})), tmp_path)
    with pytest.raises(TypeError) as caught:
        codec.encode({"price": Decimal(text)})
    assert f"{Decimal(text)} is no decimal(5, 2)" in str(caught.value)


MALFORMED = {
    "a branch before the first one": (["null", "int"], "01 0e"),
    "such a branch of several types": (["null", "int", "string"], "03 0e"),
    "such a branch of null alone": (["null"], "01"),
    "such a branch of a record in itself": (NODE, "02 01 0e 00"),
    "an int of 38 bits": ("int", "fe ff ff ff ff 0f"),
    "such an int in an array": ({"type": "array", "items": "int"}, "04 02 fe ff ff ff ff 0f 00"),
    "such an int in a map": ({"type": "map", "values": "int"}, "02 02 61 fe ff ff ff ff 0f 00"),
    "such an int in a union": (["null", "int"], "02 fe ff ff ff ff 0f"),
    "a boolean of 5": ("boolean", "05"),
    "a boolean of 2": (["null", "boolean"], "02 02"),
    "such a boolean in an array": ({"type": "array", "items": "boolean"}, "04 00 02 00"),
    "an enum before its first symbol": ({"type": "enum", "name": "E", "symbols": ["A"]}, "01"),
}


@pytest.mark.parametrize(("kind", "data"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_values_are_refused(tmp_path, kind, data):
    """Bytes that Avro does not write for a value are `undecodable`: fastavro itself reads another value from them."""
    codec = file_codec(record(("a", kind), ("b", "int", 0)), tmp_path)
    assert reason_of(codec, bytes.fromhex(data) + b"\0") == "undecodable"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", -(2**63)),
        ("long", 2**63 - 1),
        ("int", -(2**31)),
        ("int", 2**31 - 1),
        ({"type": "array", "items": "int"}, [2**31 - 1, -(2**31), 0]),
        ({"type": "array", "items": "boolean"}, [True, False]),
        (["null", "boolean"], True),
        (["null", "boolean", "long"], False),
        ("string", "日本語日本語" * 200),
        ("bytes", b"\xff" * 2_000),
        ({"type": "array", "items": "long"}, [2**63 - 1 - number for number in range(500)]),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_the_ends_of_each_kind_are_values(tmp_path, kind, value):
    """The lowest and highest numbers, booleans, and bytes that look like a long number, are read as written."""
    codec = file_codec(record(("a", kind), ("b", "int", 7)), tmp_path)
    assert codec.decode(codec.encode({"a": value, "b": 7})) == {"a": value, "b": 7}


def nested(levels):
    """The bytes of nested Nodes, written by hand because fastavro itself would crash."""
    return b"\x02\x02" * (levels - 1) + b"\x02\x00" + b"\x00" * levels


def test_nesting_as_deep_as_max_depth_is_read_and_one_level_more_is_too_deep(tmp_path):
    """Nesting of objects and arrays up to `max_depth` is read, and one level more is `too_deep`."""
    codec = file_codec(NODE, tmp_path, max_depth=20)
    # The array in the innermost object is a level as well.
    assert codec.decode(nested(19))["next"]["next"]["id"] == 1
    assert reason_of(codec, nested(20)) == "too_deep"
    assert reason_of(file_codec(NODE, tmp_path, max_depth=250), nested(249)) is None
    lists = b"\x02\x00" + b"\x02\x02\x00" * 18
    assert reason_of(codec, lists) in {"too_deep", "undecodable"}


def test_a_million_levels_do_not_end_the_process(tmp_path):
    """A million levels do not crash the process.

    fastavro recurses in C: without a check in advance, five thousand levels would end the worker.
    """
    code = (
        "from pathlib import Path\n"
        "from tests.codec.avro_world import file_codec\n"
        "from tests.codec.test_avro_any_data import NODE, reason_of, nested\n"
        f"print(reason_of(file_codec(NODE, Path({str(tmp_path)!r})), nested(1_000_000)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "too_deep"), done.stderr[-300:]


def test_a_number_of_no_symbol_is_undecodable(tmp_path):
    """An enum number without a symbol is `undecodable`, also a negative one, which Python would count from the end."""
    codec = file_codec(record(("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]})), tmp_path)
    assert codec.decode(b"\x02") == {"e": "B"}
    for data in (b"\x01", b"\x04", b"\x03"):
        assert reason_of(codec, data) == "undecodable"


def test_a_writers_schema_that_cannot_be_used_is_a_schema_mismatch():
    """A writer's schema from the registry that cannot be used is a schema mismatch."""
    world = World(EVERYTHING)
    codec = world.codec()
    for schema in (
        "string",
        record(("a", {"type": "array", "items": "null"})),
        json.loads('{"type":' * 300 + '"int"' + "}" * 300),
        {"type": "record"},
    ):
        data = b"\0" + world.register(schema).to_bytes(4) + b"\xff" * 9
        assert reason_of(codec, data) == "schema_mismatch"


def test_a_message_with_more_containers_than_its_length_allows_is_refused_and_never_written(tmp_path):
    """A message with more containers than its length allows is rejected, and such a value is never written.

    A hundred thousand are always allowed, and beyond that one for every 8 bytes.
    """
    codec = file_codec(record(("either", {"type": "array", "items": ["null", "string", "long"]})), tmp_path)
    allowed = codec.encode({"either": [None] * 99_000})
    assert len(codec.decode(allowed)["either"]) == 99_000
    long = codec.encode({"either": ["a text of some length"] * 120_000})
    assert len(codec.decode(long)["either"]) == 120_000
    with pytest.raises(TypeError, match="100000 objects, arrays and branches of unions"):
        codec.encode({"either": [None] * 101_000})
    count = 101_000
    with pytest.raises(RecordRejected, match=r"undecodable: .* more than 100000 objects, arrays and branches"):
        codec.decode(varint(count << 1) + b"\0" * count + b"\0")


QUICK = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Making a registry's client costs more than all the rest.
_DIRECTORY = tempfile.TemporaryDirectory(prefix="sowstream-avro-")
FILES = Path(_DIRECTORY.name)


@st.composite
def schema_and_values(draw, *, partial=False):
    """A schema with some of its records or deltas."""
    schema = draw(SCHEMAS)
    parsed = Schema(json.dumps(schema))
    return schema, draw(st.lists(values(parsed, parsed.root, partial=partial), min_size=1, max_size=4))


def shown(value):
    """A value's text with types and branches, members sorted, since their order is no part of the value."""
    if isinstance(value, dict):
        return type(value).__name__ + str([f"{name!r}: {shown(value[name])}" for name in sorted(value)])
    return str([shown(item) for item in value]) if type(value) is list else repr(value)


@QUICK
@given(schema_and_values())
def test_a_record_of_any_schema_is_read_back_as_written(given_both):
    """A record of any schema is read back with the same values and types, and is written again as the same bytes."""
    schema, records = given_both
    codec = file_codec(schema, FILES)
    for each in records:
        data = codec.encode(each)
        assert shown(codec.decode(data)) == shown(each)
        assert shown(codec.decode_own(data)) == shown(each)
        assert codec.encode(codec.decode(data)) == data
        whole = codec.decode_own(data)
        codec.complete(whole)
        assert shown(whole) == shown(each)


@QUICK
@given(schema_and_values(partial=True))
def test_a_delta_of_any_schema_is_read_back_as_written(given_both):
    """A delta of any schema is read back with exactly its fields, nulls included."""
    schema, deltas = given_both
    codec = file_codec(schema, FILES)
    for delta in deltas:
        data, headers = codec.encode_delta(delta)
        assert shown(codec.decode_command(data, headers, is_delta=True)) == shown(delta)


@QUICK
@given(SCHEMAS)
def test_every_field_of_a_derived_schema_can_be_left_out(schema):
    """Every field of a derived delta schema has a default, so deltas may be empty, and older ones can be read."""
    derived = json.loads(delta_schema_text(Schema(json.dumps(schema))))
    assert all(field["type"][0] == "null" and field["default"] is None for field in derived["fields"])
    codec = file_codec(schema, FILES)
    assert codec.decode_command(*codec.encode_delta({}), is_delta=True) == {}


@settings(QUICK, max_examples=20)
@given(schema_and_values())
def test_confluents_deserializer_reads_our_messages(given_both):
    """Confluent's deserializer reads the frame, the schema id and the body that the codec writes."""
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    schema, records = given_both
    world = World(schema)
    codec = world.codec()
    deserialize = AvroDeserializer(world.client, return_record_name=True)
    for each in records:
        data = codec.encode(each)
        assert deserialize(data, None).keys() == each.keys()
