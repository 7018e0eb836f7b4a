"""Message types: bytes and values, by the third-party library of the type alone (merge.md, "Message types")."""

from __future__ import annotations

import io
import json
from datetime import UTC
from typing import Any, ClassVar, TypeAlias

import bson
import fastavro
import msgpack
from bson.codec_options import CodecOptions

from tests.programs.oracle import exact_json
from tests.programs.oracle.values import MISSING, Rejected, is_object, leaves, path_of, pointer_of, value_at, with_value

Headers: TypeAlias = dict[str, str]
Object: TypeAlias = dict[str, Any]


class Format:
    """One message type."""

    name: ClassVar[str]
    has_kinds: ClassVar[bool] = True
    """Whether its numbers are integers, doubles and decimals; otherwise a number is decimal digits."""
    has_null: ClassVar[bool] = True
    is_flat: ClassVar[bool] = False
    """Whether a record has no objects in it."""

    def __init__(self, max_depth: int = 128) -> None:
        self.max_depth = max_depth

    def read(self, data: bytes) -> Any:
        """The value of a full message.

        Raises:
            Rejected: `undecodable`.
        """
        raise NotImplementedError

    def write(self, value: Object) -> bytes:
        """The bytes of a full message."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """The value of a full message from a publisher; none of these formats has an empty message.

        Raises:
            Rejected: `undecodable`, or `too_deep` beyond the topic's `max_depth`.
        """
        if not data:
            raise Rejected("undecodable", "an empty value")
        value = self.read(data)
        if depth_of(value) > self.max_depth:
            raise Rejected("too_deep")
        return value

    def decode_command(self, data: bytes, headers: Headers, *, is_delta: bool) -> Any:
        """The value of a message whose headers may name the fields that it carries."""
        return self.decode(data)

    def write_delta(self, delta: Object) -> tuple[bytes, Headers]:
        """A delta as a publisher sends it."""
        return self.write(delta), {}

    def read_delta(self, data: bytes, headers: Headers) -> Object:
        """A delta record of the worker."""
        return self.read(data)

    def complete(self, record: Object) -> Object:
        """The record with the fields that the message type fills in."""
        return record

    def stored(self, record: Object) -> Object:
        """The record after writing and reading, which may make two values equal."""
        return record


class Json(Format):
    """JSON, parsed by hand."""

    name = "json"
    has_kinds = False

    def read(self, data: bytes) -> Any:
        """The value of a text."""
        return exact_json.parse(data)

    def write(self, value: Object) -> bytes:
        """The text of a value."""
        return exact_json.write(value)


class Msgpack(Format):
    """MessagePack, by the package msgpack."""

    name = "msgpack"

    def read(self, data: bytes) -> Any:
        """The value of a message."""
        try:
            return msgpack.unpackb(data, timestamp=0, strict_map_key=True, raw=False)
        except Exception as error:  # noqa: BLE001 - whatever the library raises
            raise Rejected("undecodable", str(error)) from None

    def write(self, value: Object) -> bytes:
        """The message of a value."""
        return msgpack.packb(value)


class Bson(Format):
    """BSON, by the package bson of pymongo."""

    name = "bson"
    _OPTIONS: ClassVar[CodecOptions] = CodecOptions(tz_aware=True, tzinfo=UTC)

    def read(self, data: bytes) -> Any:
        """The document."""
        try:
            return bson.decode(data, self._OPTIONS)
        except Exception as error:  # noqa: BLE001 - whatever the library raises
            raise Rejected("undecodable", str(error)) from None

    def write(self, value: Object) -> bytes:
        """The bytes of a document."""
        return bson.encode(value)


def depth_of(value: Any) -> int:
    """How deep objects and arrays nest; a scalar has depth 0."""
    if is_object(value):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


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
