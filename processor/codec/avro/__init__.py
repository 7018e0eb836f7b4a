"""The message type `avro`: fastavro reads and writes the bytes; schemas, resolution and deltas are in this folder.

In reading order: `codec` (the message type), `fields` (which fields a delta carries), `schemas` (the registry),
`schema` and `wire` (a schema made ready for fastavro), `resolve` (from a writer's values to the topic's), `write` (the
way back), `delta_schema` (the schema of partial records); the others are what these need.
"""

from processor.codec.avro.codec import AvroCodec

__all__ = ["AvroCodec"]
