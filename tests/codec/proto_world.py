"""A mock registry with the Protocol Buffers schemas of orders, and messages of Confluent's own serializer."""

from __future__ import annotations

import itertools
from typing import Any

from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2

from processor.codec.schema_registry.schemas import Registry

_numbers = itertools.count()
CONTEXT = SerializationContext("orders.publish", MessageField.VALUE, [])
CONF = {"use.deprecated.format": False}

NAMES = ["id", "qty", "note", "px"]
_TYPES = {"id": "INT64", "qty": "INT32", "note": "STRING", "px": "DOUBLE"}


def file_text(fields: list[str] = NAMES[:3], *, has_presence: bool = True) -> str:
    """The file `shop/orders.proto` with the messages Header and Order; Order.Line is inside."""
    optional = "proto3_optional: true oneof_index: {index}" if has_presence else ""
    rows = "".join(
        f'field {{ name: "{name}" number: {NAMES.index(name) + 1} label: LABEL_OPTIONAL type: TYPE_{_TYPES[name]} '
        f"{optional.format(index=index)} }}\n"
        for index, name in enumerate(fields)
    )
    oneofs = "".join(f'oneof_decl {{ name: "_{name}" }}\n' for name in fields) if has_presence else ""
    return f"""
name: "shop/orders.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
message_type {{ name: "Header" field {{ name: "x" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }} }}
message_type {{
  name: "Order"
  {rows} {oneofs}
  field {{ name: "at" number: 9 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }}
  field {{ name: "lines" number: 10 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.Line" }}
  nested_type {{ name: "Line" field {{ name: "sku" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }} }}
}}
"""


def classes(text: str) -> dict[str, Any]:
    """The message classes of a file, by full name."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
            for name in ("shop.Header", "shop.Order", "shop.Order.Line")}  # fmt: skip


class World:
    """A mock registry; `orders.publish-value` has the file."""

    def __init__(self, **form: Any) -> None:
        self.settings = {"url": f"mock://proto{next(_numbers)}"}
        self.client = Registry(self.settings)._client
        self.kinds = classes(file_text(**form))

    def framed(self, name: str = "shop.Order", kinds: dict[str, Any] | None = None, **fields: Any) -> bytes:
        """A message by Confluent's serializer, which registers its schema."""
        make = (kinds or self.kinds)[name]
        return ProtobufSerializer(make, self.client, CONF)(make(**fields), CONTEXT)

    def read(self, data: bytes) -> dict[str, Any]:
        """The set fields of a framed order, read by Confluent's deserializer."""
        message = ProtobufDeserializer(self.kinds["shop.Order"], CONF, self.client)(data, CONTEXT)
        return {field.name: value for field, value in message.ListFields()}
