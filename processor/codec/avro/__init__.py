"""The message type `avro`: fastavro reads and writes the bytes; schemas, resolution and deltas are in this folder.

In reading order: `codec` (the message type), `delta` (the schema of partial records, and which fields one carries),
`schema` and `wire` (a schema made ready for fastavro), `resolve` (from a writer's values to the topic's), `write` (the
way back); `scalar` and `default` are what these need.
"""

from processor.codec.avro.codec import AvroCodec

__all__ = ["AvroCodec"]
