"""Avro messages of Confluent's serializers are merged by a worker with a real registry and a real broker."""

import datetime as dt
import json
from decimal import Decimal

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.codec.avro_world import record
from tests.endtoend.world import World
from tests.registry.reading import messages

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
