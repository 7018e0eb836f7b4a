"""The message type `json-schema`: JSON whose schema is a file, or is kept in a schema registry."""

from processor.codec.json_schema.codec import JsonSchemaCodec

__all__ = ["JsonSchemaCodec"]
