"""Avro, JSON and Protobuf with a real schema registry, written and read by others' serializers."""

import datetime as dt
import json
from decimal import Decimal

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from processor.codec import CodecOptions
from processor.codec.protobuf.codec import protobuf_codec
from processor.config import SchemaConfig
from tests.codec.avro_world import record
from tests.codec.proto_world import CONF, NAMES, classes, file_text
from tests.endtoend.world import World

pytestmark = [pytest.mark.registry, pytest.mark.broker]

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
AT = {"type": "long", "logicalType": "timestamp-micros"}
ADDRESS = record(("zip", "string"), ("street", "string", ""), name="Address")
ORDER = record(("id", "long"), ("qty", "int", 0), ("price", ["null", PRICE], None), ("at", ["null", AT], None),
               ("address", ["null", ADDRESS], None))  # fmt: skip
NEWER = record(("id", "long"), ("amount", "long", 0), *[(f["name"], f["type"], None) for f in ORDER["fields"][2:]],
               ("note", "string", "-"))  # fmt: skip
NEWER["fields"][1]["aliases"] = ["qty"]
WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, 123456, dt.UTC)


def test_avro_by_others_is_merged_and_read_by_others_across_an_evolution(
    registry, bootstrap, tmp_path, unique, monkeypatch
):
    """Full records, subset deltas and a schema id in a header are merged across a schema change.

    Confluent's deserializer reads the SOW and delta records.
    """
    client = SchemaRegistryClient({"url": registry})
    topic = SerializationContext(f"{unique}.publish", MessageField.VALUE, [])
    write = AvroSerializer(client, json.dumps(ORDER))
    first = write(
        {"id": 1, "qty": 2, "price": Decimal("1.250"), "at": WHEN, "address": {"zip": "8", "street": "s"}}, topic
    )

    by_record = {"subject.name.strategy": record_subject_name_strategy}
    part = record(("id", "long"), ("address", record(("zip", "string"), name="Zip")), name="Part")
    subset = AvroSerializer(client, json.dumps(part), conf=by_record)({"id": 1, "address": {"zip": "9"}}, topic)
    quantity = record(("id", "long"), ("qty", "int"), name="Quantity")
    # This registry has no GUIDs, which Confluent's serializer writes there; the deserializer reads an id as well.
    framed = AvroSerializer(client, json.dumps(quantity), conf=by_record)({"id": 1, "qty": 3}, topic)
    bare, in_header = framed[5:], {"__value_schema_id": framed[:5]}

    monkeypatch.setenv("SOWSTREAM_SCHEMA_REGISTRY__URL", registry)
    world = World(bootstrap, tmp_path, unique, message_type="avro")
    try:
        world.publish([(b"1", first, {"command": "publish"}), (b"1", subset, {}), (b"1", bare, in_header),
                       (b"1", b"\0\0\x7f\0\0\0", {})])  # fmt: skip
        worker = world.start()
        world.settle()
        assert worker.stop() == 0

        client.register_schema(f"{unique}.publish-value", AvroSerializer(client, json.dumps(NEWER))._schema)
        note = record(("id", "long"), ("note", "string"), name="Note")
        world.publish(
            [(b"1", AvroSerializer(client, json.dumps(note), conf=by_record)({"id": 1, "note": "n"}, topic), {})]
        )
        worker = world.start()
        world.settle()
        assert worker.stop() == 0

        read = AvroDeserializer(client)
        sow = [read(value, None) for value, _ in messages(world, "sow")]
        delta = [(read(value, None), json.loads(headers["fields"])) for value, headers in messages(world, "delta")]
        letters = [headers["dlq_reason"] for _, headers in messages(world, "dlq")]
    finally:
        world.close()
        client.close()
    print("sow", *sow, "delta", *delta, sep="\n  ")

    whole = {"id": 1, "qty": 2, "price": Decimal("1.250"), "at": WHEN, "address": {"zip": "8", "street": "s"}}
    assert sow[:3] == [whole, whole | {"address": {"zip": "9", "street": "s"}},
                       whole | {"qty": 3, "address": {"zip": "9", "street": "s"}}]  # fmt: skip
    assert sow[3] == {"id": 1, "amount": 3, "price": Decimal("1.250"), "at": WHEN,
                      "address": {"zip": "9", "street": "s"}, "note": "n"}  # fmt: skip
    assert [fields for _, fields in delta[1:]] == [["/id", "/address/zip"], ["/id", "/qty"], ["/id", "/note"]]
    assert [delta[1][0]["address"]["zip"], delta[2][0]["qty"], delta[3][0]["note"]] == ["9", 3, "n"]
    assert letters == [b"schema_not_found"]


DRAFT = "http://json-schema.org/draft-07/schema#"


@pytest.fixture
def client(registry):
    """Confluent's client of the registry."""
    with SchemaRegistryClient({"url": registry}) as client:
        yield client


def json_schema(title, required=(), **types):
    """A JSON Schema with these types of members."""
    return json.dumps({"$schema": DRAFT, "title": title, "type": "object", "additionalProperties": False,
                       "properties": {name: {"type": kind} for name, kind in types.items()},
                       "required": list(required)})  # fmt: skip


def test_json_by_others_is_checked_merged_and_read_by_others(
    client, registry, bootstrap, tmp_path, unique, monkeypatch
):
    """Messages of two schemas are merged, a violation is a dead letter, and Confluent's deserializer reads the rest."""
    topic = SerializationContext(f"{unique}.publish", MessageField.VALUE, [])
    order = json_schema("Order", ("id", "qty"), id="integer", qty="integer", note="string")
    part = json_schema(f"Part-{unique}", id="integer", note="string")
    conf = {"subject.name.strategy": record_subject_name_strategy}
    first = JSONSerializer(order, client)({"id": 1, "qty": 2}, topic)
    subset = JSONSerializer(part, client, conf=conf)({"id": 1, "note": "n"}, topic)
    invalid = JSONSerializer(order, client, conf={"validate": False})({"id": 1, "qty": "two"}, topic)
    own_delta = first[:5] + b'{"id":1,"qty":5}'

    monkeypatch.setenv("SOWSTREAM_SCHEMA_REGISTRY__URL", registry)
    world = World(bootstrap, tmp_path, unique, message_type="json-schema")
    try:
        world.publish([(b"1", first, {"command": "publish"}), (b"1", subset, {}), (b"1", invalid, {}),
                       (b"1", own_delta, {}), (b"1", b'{"id":1}', {})])  # fmt: skip
        worker = world.start()
        world.settle()
        assert worker.stop() == 0
        read = JSONDeserializer(None, schema_registry_client=client)
        sow = [read(value, topic) for value, _ in messages(world, "sow")]
        delta = [read(value, topic) for value, _ in messages(world, "delta")]
        letters = [(headers["dlq_reason"], headers["dlq_detail"]) for _, headers in messages(world, "dlq")]
    finally:
        world.close()
    assert sow == [{"id": 1, "qty": 2}, {"id": 1, "qty": 2, "note": "n"}, {"id": 1, "qty": 5, "note": "n"}]
    assert delta[1:] == [{"id": 1, "note": "n"}, {"id": 1, "qty": 5}]
    assert [reason for reason, _ in letters] == [b"schema_mismatch", b"undecodable"]
    assert letters[0][1] == b'/qty does not fit its schema: type is "integer"'


def test_protobuf_by_others_is_merged_by_presence_and_read_by_others(
    client, registry, bootstrap, tmp_path, unique, monkeypatch
):
    """Set fields change the record, also by a newer version; another message type of the file is a dead letter."""
    topic = SerializationContext(f"{unique}.publish", MessageField.VALUE, [])
    kinds, newer = classes(file_text()), classes(file_text(NAMES))

    def framed(of=kinds, name="shop.Order", **fields):
        return ProtobufSerializer(of[name], client, CONF)(of[name](**fields), topic)

    monkeypatch.setenv("SOWSTREAM_SCHEMA_REGISTRY__URL", registry)
    first = framed(id=1, qty=2, note="n")
    subject = {"subject": f"{unique}.publish-value", "message": "shop.Order"}
    world = World(bootstrap, tmp_path, unique, message_type="protobuf", schema=subject)
    try:
        world.publish([(b"1", first, {"command": "publish"}), (b"1", framed(id=1, qty=0), {}),
                       (b"1", framed(name="shop.Header", x=1), {})])  # fmt: skip
        worker = world.start()
        world.settle()
        assert worker.stop() == 0
        world.publish([(b"1", framed(newer, id=1, px=1.5), {})])
        worker = world.start()
        world.settle()
        assert worker.stop() == 0
        sow = [value for value, _ in messages(world, "sow")]
        delta = [value for value, _ in messages(world, "delta")]
        letters = [headers["dlq_reason"] for _, headers in messages(world, "dlq")]
    finally:
        world.close()

    def fields(value):
        assert client.get_schema(int.from_bytes(value[1:5])).schema_type == "PROTOBUF"
        message = newer["shop.Order"].FromString(value[7:])
        return {field.name: of for field, of in message.ListFields()}

    assert list(map(fields, sow)) == [{"id": 1, "qty": 2, "note": "n"}, {"id": 1, "qty": 0, "note": "n"},
                                      {"id": 1, "qty": 0, "note": "n", "px": 1.5}]  # fmt: skip
    assert list(map(fields, delta))[1:] == [{"id": 1, "qty": 0}, {"id": 1, "px": 1.5}]
    assert {value[5:7] for value in sow + delta} == {b"\x02\x02"}
    assert letters == [b"schema_mismatch"]


def test_the_text_of_a_proto_file_with_an_import_is_read(client, registry, unique):
    """Schemas that were registered as texts, as Java's serializer does it, are compiled with their references."""
    parts = Schema('syntax = "proto3"; package p; message Part { optional string name = 1; }', "PROTOBUF")
    client.register_schema(f"{unique}-parts", parts)
    fields = "optional int64 id = 1; optional Part part = 2;"
    text = f'syntax = "proto3"; package p; import "parts.proto"; message Order {{ {fields} }}'
    reference = SchemaReference("parts.proto", f"{unique}-parts", 1)
    client.register_schema(f"{unique}-value", Schema(text, "PROTOBUF", [reference]))
    codec = protobuf_codec(
        CodecOptions(topic=unique, registry={"url": registry}, schema=SchemaConfig(subject=f"{unique}-value"))
    )
    try:
        assert codec.decode(codec.encode({"id": 1, "part": {"name": "x"}})) == {"id": 1, "part": {"name": "x"}}
    finally:
        codec._frames._registry.close()


def messages(world, role):
    """All committed records of a topic with value and headers, read by Kafka's own consumer."""
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": "r", "isolation.level": "read_committed",
                         "enable.partition.eof": True, "auto.offset.reset": "earliest"})  # fmt: skip
    consumer.assign([TopicPartition(f"{world.name}.{role}", number, 0) for number in range(4)])
    records, ended = [], set()
    while len(ended) < 4:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            records.append((message.value(), dict(message.headers() or [])))
    consumer.close()
    return records
