"""The frame of a Protocol Buffers message, by Confluent's client: the schema's id and the path to the message type."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

from confluent_kafka.schema_registry.serde import SchemaId

_TYPE = "PROTOBUF"


def write_frame(schema_id: int, path: Sequence[int]) -> bytes:
    """The frame of the messages of one type.

    Args:
        schema_id: the id of the file's schema.
        path: the positions of the message type in the file, and of the types inside it.
    """
    return SchemaId(_TYPE, schema_id, None, list(path)).id_to_bytes()


def path_in_frame(frame: bytes) -> tuple[int, ...]:
    """The path to the message type in a complete frame."""
    schema = SchemaId(_TYPE)
    schema.from_bytes(BytesIO(frame))
    return tuple(schema.message_indexes or ())
