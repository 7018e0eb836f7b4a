"""Protobuf messages with a schema of a file, and of a registry."""

import subprocess
from dataclasses import replace

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from google.protobuf import descriptor_pb2

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec import CodecOptions
from processor.codec.protobuf import registered
from processor.codec.protobuf.codec import protobuf_codec
from processor.codec.protobuf.registered import file_of, message_at, message_type, path_of
from processor.codec.schema_registry.schemas import Registry, SchemaText
from processor.codec.schema_registry.topic_schema import UnusableSchema
from processor.config import SchemaConfig, TopicConfig
from processor.errors import ConfigurationError, PartitionHeld, RecordRejected, Stop
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import rejected, told
from tests.codec.proto_world import NAMES, World, classes, file_text
from tests.codec.specimens import PROTO_FILE, codec_of, refused


def test_without_a_schema_the_value_is_the_bytes():
    """Without a schema the value is the bytes themselves, and the key must come from the publisher."""
    codec = protobuf_codec()
    assert codec.encode(codec.decode(b"\xff\0")) == b"\xff\0"
    with pytest.raises(TypeError, match="is bytes; this is dict"):
        codec.encode({})


def test_fields_that_cannot_be_absent_have_their_defaults():
    """Fields without presence get their defaults; `optional` fields, oneofs and messages exist only if they are set."""
    codec = codec_of("protobuf")
    empty = {
        "id": 0,
        "big": 0,
        "raw": b"",
        "price": 0.0,
        "side": "UNKNOWN",
        "tags": [],
        "legs": [],
        "by_n": {},
        "ok": False,
    }
    assert codec.decode(b"") == empty
    assert codec.decode(codec.encode({"note": "", "cash": 0, "parent": {}})) == {
        **empty, "note": "", "cash": 0, "parent": empty,
    }  # fmt: skip
    with pytest.raises(TypeError, match=r"^/cash: the oneof pay has another field set"):
        codec.encode({"cash": 1, "card": "x"})


def test_an_unknown_field_is_no_error_and_an_unknown_enum_is_its_number():
    """Unknown fields are ignored and unknown enum values are read as numbers, so a newer publisher can be read."""
    value = codec_of("protobuf").decode(b"\x08\x07\x30\x09\xf8\x07\x01")
    assert (value["id"], value["side"]) == (7, 9)


@pytest.mark.parametrize("index", [b"\x00", b"\x02\x04", b"\x04\x02\x00"], ids=bytes.hex)
def test_a_confluent_frame_is_skipped(index):
    """A Confluent frame with its schema id and message path is skipped without a look-up."""
    assert codec_of("protobuf").decode(b"\x00\x00\x00\x00\x07" + index + b"\x08\x07")["id"] == 7


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x08", b"\x00\x00", b"\x00" * 5, b"\x00" * 5 + b"\x06\x00", b"\x1a\x01\xff"]
)
def test_bad_bytes_are_refused(data):
    """Truncated bytes, invalid texts and half a frame are rejected as `undecodable`."""
    assert refused(codec_of("protobuf"), data).startswith("undecodable: ")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"nope": 1}, "/nope: test.Order has no such field"),
        ({"id": "7"}, "/id: "),
        ({"id": True}, "/id: True is not what the field takes"),
        ({"id": 2**63}, "/id: "),
        ({"id": None}, "/id: "),
        ({"raw": "x"}, "/raw: "),
        ({"note": b"x"}, "/note: "),
        ({"ok": 1}, "/ok: "),
        ({"side": "SELL"}, "/side: test.Side has no value 'SELL'"),
        ({"tags": "x"}, "/tags is str; the field is repeated"),
        ({"legs": [{"id": 1}, {"id": ""}]}, "/legs/id: "),
        ({"parent": {"parent": {"x": 1}}}, "/parent/parent/x: "),
        ({"by_n": {"x": {}}}, "/by_n: "),
        ({"by_n": []}, "/by_n is list; the field is a map"),
        ([], "the record is list"),
    ],
    ids=repr,
)
def test_a_value_outside_the_schema_is_a_type_error_with_its_path(value, why):
    """A value that the schema does not accept is a TypeError with its path; no value is converted to fit."""
    with pytest.raises(TypeError) as caught:
        codec_of("protobuf").encode(value)
    assert why in str(caught.value)


def test_a_schema_that_cannot_be_used_is_a_configuration_error(tmp_path):
    """A schema that cannot be used is a configuration error with the remedy.

    Covered are a missing file, no descriptor set, missing imports, an unknown message and a registry subject.
    """
    junk, lonely = tmp_path / "junk", tmp_path / "lonely"
    junk.write_bytes(b"\xff")
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])
    lonely.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    for schema, why in [
        (SchemaConfig(file=tmp_path / "none", message="test.Order"), "No such file"),
        (SchemaConfig(file=junk, message="test.Order"), "no complete descriptor set"),
        (SchemaConfig(file=lonely, message="test.Order"), "--include_imports"),
        (SchemaConfig(file=PROTO_FILE, message="test.Ordr"), "did you mean 'test.Order'"),
        (SchemaConfig(file=PROTO_FILE), "message: full.Name"),
        (SchemaConfig(subject="orders-value"), "name no schema registry"),
        (SchemaConfig(message="test.Order"), "DESCRIPTOR_SET"),
    ]:
        with pytest.raises(ConfigurationError) as caught:
            protobuf_codec(CodecOptions(schema=schema))
        assert why in str(caught.value)


SUBJECT = {"subject": "orders.publish-value", "message": "shop.Order"}


def driver_of(world, **topic):
    """A worker that starts now."""
    config = TopicConfig(message_type="protobuf", schema=SUBJECT, **topic)
    return ProcessorTestDriver(DeltaMerge, config, name="orders", topic=config, registry=world.settings)


def values(driver, role):
    """The values of a topic's records."""
    return [record.value for record in driver.pending_output(role)]


def test_deltas_carry_the_fields_that_are_set_and_everything_is_written_in_confluents_format():
    """A set field changes the record, also to its default; SOW and delta are read by Confluent's deserializer."""
    world = World()
    first = world.framed(id=7, qty=1, note="n")
    driver = driver_of(world)
    driver.pipe_input("7", first, {"command": "publish"})
    driver.pipe_input("7", world.framed(id=7, qty=0), {})
    assert rejected(driver) == []
    assert [world.read(value) for value in values(driver, "sow")] == [
        {"id": 7, "qty": 1, "note": "n"},
        {"id": 7, "qty": 0, "note": "n"},
    ]
    assert world.read(values(driver, "delta")[1]) == {"id": 7, "qty": 0}
    # Order is the second message of its file: its path is one step, 1, both as zigzag varints.
    assert values(driver, "sow")[0][:7] == first[:5] + b"\x02\x02"


def test_messages_without_presence_are_published_whole_and_keep_their_frame():
    """If absent and default look alike, a message replaces the record and is stored byte for byte."""
    world = World(has_presence=False)
    first, second = world.framed(id=7, qty=1), world.framed(id=7, note="x")
    driver = driver_of(world)
    driver.pipe_input("7", first)
    driver.pipe_input("7", second)
    driver.pipe_input("7", second[7:], {"__value_schema_id": second[:7]})
    assert rejected(driver) == []
    assert values(driver, "sow") == [first, second, second[7:]]


def test_a_newer_publishers_fields_are_kept_and_an_older_record_is_read():
    """The id of a newer version is accepted, and its new field stays in the record; old records can be read."""
    world = World()
    world.framed(id=0)
    driver = driver_of(world)
    newer = classes(file_text(NAMES))
    old_frame = world.framed(id=7, qty=1)
    driver.pipe_input("7", old_frame, {"command": "publish"})
    driver.pipe_input("7", world.framed(kinds=newer, id=7, px=1.5))
    assert rejected(driver) == []
    codec = protobuf_codec(CodecOptions(topic="orders", schema=SchemaConfig(**SUBJECT), registry=world.settings))
    assert codec.decode_own(values(driver, "sow")[-1]) == {"id": 7, "qty": 1, "px": 1.5}
    assert codec.decode_own(old_frame) == {"id": 7, "qty": 1}


@pytest.mark.parametrize(
    ("make", "headers", "reason", "detail"),
    [
        (lambda world: world.framed(id=7)[7:], {}, "undecodable", "no schema"),
        (lambda world: b"\0\0\x7f\0\0\0", {}, "schema_not_found", "no schema 8323072"),
        (lambda world: b"\0\0", {}, "undecodable", "ends at byte 2"),
        (lambda world: world.framed(id=7)[:5] + b"\x01\x08\x07", {}, "undecodable", "a path of -1 steps"),
        (lambda world: world.framed("shop.Header", x=1), {}, "schema_mismatch", "has shop.Header at [0]"),
        (lambda world: world.framed("shop.Order.Line", sku="x"), {}, "schema_mismatch", "shop.Order.Line at [1, 0]"),
        (lambda world: world.framed(id=7)[:5] + b"\x02\x0c", {}, "schema_mismatch", "no message type at [6]"),
        (lambda world: world.framed(id=7) + b"\xff", {}, "undecodable", "not a shop.Order"),
        (lambda world: b"", {"__value_schema_id": b"\0\0"}, "bad_header", "ends at byte 2"),
        (lambda world: b"", {"__value_schema_id": b"xx"}, "bad_header", "is no id with a path"),
    ],
)  # fmt: skip
def test_a_message_whose_frame_does_not_fit_is_a_dead_letter(make, headers, reason, detail):
    """A frame is needed, its schema must exist, and the path must lead to the topic's message type."""
    world = World()
    world.framed(id=7)
    driver = driver_of(world)
    driver.pipe_input("7", make(world), headers)
    [(found, text)] = rejected(driver)
    assert (found, detail in text) == (reason, True), text
    assert values(driver, "sow") == []


def test_a_schema_of_another_type_is_a_mismatch():
    """A frame that names an Avro schema is refused."""
    world = World()
    world.framed(id=7)
    number = world.client.register_schema("avro", Schema('"long"', "AVRO"))
    driver = driver_of(world)
    driver.pipe_input("7", b"\0" + number.to_bytes(4) + b"\0")
    assert rejected(driver) == [("schema_mismatch", "the schema is of the type AVRO, not PROTOBUF")]


def test_the_frame_in_a_header_stands_for_that_of_the_message_and_does_not_travel():
    """Header `__value_schema_id` holds the id and the path of a bare message."""
    world = World()
    framed = world.framed(id=7, qty=1)
    driver = driver_of(world)
    driver.pipe_input("7", framed[7:], {"__value_schema_id": framed[:7]})
    assert [world.read(value) for value in values(driver, "sow")] == [{"id": 7, "qty": 1}]
    assert "__value_schema_id" not in told(driver.pending_output("sow")[0])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"subject": "nowhere"}, "no subject nowhere"),
        ({"subject": "orders.publish-value", "message": "shop.Ordre"}, "did you mean 'shop.Order'"),
        ({"subject": "json"}, "of the type JSON, not PROTOBUF; name one with a Protocol Buffers schema"),
    ],
)
def test_a_subject_that_cannot_be_used_is_a_configuration_error(schema, why):
    """A missing subject, a message that it does not have, and a schema of another type are refused at the start."""
    world = World()
    world.framed(id=7)
    world.client.register_schema("json", Schema("{}", "JSON"))
    with pytest.raises(ConfigurationError, match=why):
        protobuf_codec(CodecOptions(topic="orders", schema=SchemaConfig(**schema), registry=world.settings))


TEXT = """syntax = "proto3";
package shop;
import "shop/parts.proto";
import "google/protobuf/timestamp.proto";
message Order { optional int64 id = 1; optional Part part = 2; google.protobuf.Timestamp at = 3;
  message Line { optional string sku = 1; } }
"""
TEXT_ALONE = 'syntax = "proto3"; package shop; message Order { optional int64 id = 1; } message Other {}'
PARTS = 'syntax = "proto3"; package shop; message Part { optional string name = 1; }'


def test_the_text_of_a_file_is_compiled_with_the_files_that_it_imports():
    """A registry may return texts, as Apicurio's does: protoc compiles them with their references."""
    world = World()
    world.client.register_schema("parts", Schema(PARTS, "PROTOBUF"))
    world.client.register_schema(
        "orders.publish-value", Schema(TEXT, "PROTOBUF", [SchemaReference("shop/parts.proto", "parts", 1)])
    )
    codec = protobuf_codec(CodecOptions(topic="orders", schema=SchemaConfig(**SUBJECT), registry=world.settings))
    record = {"id": 1, "part": {"name": "x"}, "at": {"seconds": 5, "nanos": 0}}
    assert codec.decode(codec.encode(record)) == record


def test_a_schema_is_compiled_once_for_all_paths_and_again_after_protoc_ran_out_of_time(monkeypatch):
    """A slow protoc holds the partition, or stops a client, until it is asked again; it runs once for each schema."""
    world = World()
    world.framed(id=7)
    frame = b"\0" + world.client.register_schema("newer", Schema(TEXT_ALONE, "PROTOBUF")).to_bytes(4)
    options = CodecOptions(topic="orders", schema=SchemaConfig(**SUBJECT), registry=world.settings)
    held, waiting = (protobuf_codec(replace(options, registry_wait_s=wait_s)) for wait_s in (30.0, None))
    monkeypatch.setattr(registered, "PROTOC_TIMEOUT_S", 0.0)
    with pytest.raises(PartitionHeld, match="protoc has not compiled it in 0 s"):
        held.decode(frame + b"\0\x08\x07")
    with pytest.raises(Stop, match="protoc has not compiled it in 0 s"):
        waiting.decode(frame + b"\0\x08\x07")
    monkeypatch.undo()
    runs, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: runs.append(command) or run(*command, **options))
    for path in (b"\0", b"\2\0"):
        assert held.decode(frame + path + b"\x08\x07") == {"id": 7}
    for step in range(2, 40, 2):
        assert refused(held, frame + bytes([2, step])).startswith("schema_mismatch: ")
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (SchemaText("message X {", ()), "protoc refuses it"),
        (SchemaText('syntax = "proto3"; import "a.proto";', ()), "a.proto"),
        (SchemaText('syntax = "proto3";', ("",), None, ("../x.proto",)), "no relative path"),
        (SchemaText("////", ()), "no file descriptor"),
        (SchemaText("EgRzaG9wGgdhLnByb3Rv", ()), "a.proto is imported, and is not among the references"),
    ],
)
def test_a_schema_that_cannot_be_compiled_says_why(found, why):
    """Broken texts, missing imports and unsafe names have their own sentences."""
    with pytest.raises(UnusableSchema, match=why):
        file_of(found)


def test_paths_lead_to_message_types_and_back():
    """The path of a type leads to it; a path beside the file's types leads to none."""
    file = file_of(
        SchemaText('syntax = "proto3"; message A { message B { message C {} } message D {} } message E {}', ())
    )
    for name in ("A", "A.B", "A.B.C", "A.D", "E"):
        kind = message_type(file, name)
        assert message_at(file, path_of(kind)) is kind
    assert [message_at(file, path) for path in ((), (2,), (0, 2), (-1,))] == [None] * 4
    assert message_type(file, None).full_name == "A"


def test_a_registry_that_returns_texts_and_descriptors_is_asked_for_the_descriptor():
    """Confluent's registry keeps the text, and returns the descriptor on request."""
    from tests.codec.test_schemas import answering

    text = {"schema": "message A {}", "schemaType": "PROTOBUF"}
    descriptor = {"schema": "GgA=", "schemaType": "PROTOBUF"}
    with answering((200, text), (200, descriptor)) as (url, asked):
        registry = Registry({"url": url}, None, "PROTOBUF")
        assert registry.schema(1).text == "GgA="
        registry.close()
    assert asked == ["/schemas/ids/1", "/schemas/ids/1?format=serialized"]


def test_a_registry_that_does_not_answer_the_request_for_a_descriptor_is_asked_again():
    """A descriptor that the registry cannot return once is asked for again: the text is not kept for it."""
    from tests.codec.test_schemas import answering

    text = {"schema": "message A {}", "schemaType": "PROTOBUF"}
    descriptor = {"schema": "GgA=", "schemaType": "PROTOBUF"}
    with answering((200, text), (503, {}), (200, descriptor)) as (url, asked):
        registry = Registry({"url": url}, None, "PROTOBUF")
        assert registry.schema(1).text == "GgA="
        registry.close()
    assert len(asked) == 3


def test_a_registry_that_fails_at_the_request_for_a_descriptor_is_taken_by_its_text():
    """Apicurio's registry answers such a request with an error: the text is used at once."""
    from tests.codec.test_schemas import answering

    text = {"schema": "message A {}", "schemaType": "PROTOBUF"}
    with answering((200, text), (500, {})) as (url, asked):
        registry = Registry({"url": url}, None, "PROTOBUF")
        assert registry.schema(1).text == "message A {}"
        registry.close()
    assert len(asked) == 2


def test_a_message_that_is_refused_is_refused_again_without_asking():
    """The verdict on a frame is kept: a feed of wrong messages costs one look at the schema."""
    world = World()
    world.framed(id=7)
    wrong = world.framed("shop.Header", x=1)
    codec = protobuf_codec(CodecOptions(topic="orders", schema=SchemaConfig(**SUBJECT), registry=world.settings))
    for _ in range(2):
        with pytest.raises(RecordRejected, match=r"has shop\.Header"):
            codec.decode(wrong)
    codec._frames._registry = None
    with pytest.raises(RecordRejected, match=r"has shop\.Header"):
        codec.decode(wrong)
