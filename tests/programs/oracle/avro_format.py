"""Avro without a schema registry, by fastavro: records in the topic's schema, deltas with the header `fields`.

All fields of the test's schema may be null, with null for default. So the derived schema of deltas, in which each field
is a union with null, is the schema itself (merge.md, "Message types").
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from tests.programs.oracle.formats import Format, Headers, Object
from tests.programs.oracle.values import MISSING, Rejected, is_object, leaves, path_of, pointer_of, value_at, with_value


class Avro(Format):
    """Avro in one schema, a record whose fields may all be null."""

    name = "avro"

    def __init__(self, schema: dict[str, Any], max_depth: int = 128) -> None:
        super().__init__(max_depth)
        self.schema = schema
        self._parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))

    def read(self, data: bytes) -> Any:
        """The record, with all its fields."""
        stream = io.BytesIO(data)
        try:
            record = fastavro.schemaless_reader(stream, self._parsed, None)
        except Exception as error:  # noqa: BLE001 - whatever the library raises
            raise Rejected("undecodable", str(error)) from None
        if stream.read():
            raise Rejected("undecodable", "bytes after the record")
        return record

    def write(self, value: Object) -> bytes:
        """The bytes of a record; missing fields are null."""
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, self._parsed, value)
        return stream.getvalue()

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Any:
        """The record, or of a delta the fields that its header names."""
        value = self.decode(data)
        return self._named(value, headers) if is_delta and "fields" in headers else value

    def write_delta(self, delta: Object) -> tuple[bytes, Headers]:
        """A delta and the header that names its fields; an empty object has the pointer of its member of no name."""
        pointers = [pointer_of(path) + ("/" if is_object(value) else "") for path, value in leaves(delta).items()]
        return self.write(delta), {"fields": json.dumps(pointers)}

    def read_delta(self, data: bytes, headers: Headers) -> Object:
        """A delta record: the fields that its header names."""
        return self._named(self.read(data), headers)

    def complete(self, record: Object) -> Object:
        """A record with all its fields; missing ones have their defaults."""
        return _completed(self.schema, record)

    @staticmethod
    def _named(value: Object, headers: Headers) -> Object:
        named: Object = {}
        for pointer in json.loads(headers["fields"]):
            path = path_of(pointer)
            if path[-1] == "":
                path = path[:-1]
                if value_at(named, path) is MISSING:
                    named = with_value(named, path, {})
            else:
                named = with_value(named, path, value_at(value, path))
        return named


def _completed(schema: dict[str, Any], record: Object) -> Object:
    completed: Object = {}
    for field in schema["fields"]:
        name = field["name"]
        value = record.get(name)
        inner = next((branch for branch in field["type"] if isinstance(branch, dict) and "fields" in branch), None)
        completed[name] = _completed(inner, value) if inner is not None and is_object(value) else value
    return completed
