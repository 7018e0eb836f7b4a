"""The message type `json-schema`: JSON that a JSON Schema checks, with a schema registry or without.

`codec` is the message type, `check` the validation by jsonschema, `partial_schema` the schema of deltas.
"""

from processor.codec.json_schema.codec import JsonSchemaCodec

__all__ = ["JsonSchemaCodec"]
