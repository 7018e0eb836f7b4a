"""The message type `json-schema`: JSON that a JSON Schema checks, with a schema registry or without.

`codec` is the message type with the schema of deltas, `check` the validation by jsonschema.
"""

from processor.codec.json_schema.codec import JsonSchemaCodec

__all__ = ["JsonSchemaCodec"]
