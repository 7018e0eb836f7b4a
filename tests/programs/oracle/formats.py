"""Message types: bytes and values, by the third-party library of the type alone (merge.md, "Message types")."""

from __future__ import annotations

from datetime import UTC
from typing import Any, ClassVar, TypeAlias

import bson
import msgpack
from bson.codec_options import CodecOptions

from tests.programs.oracle import exact_json
from tests.programs.oracle.values import Rejected, is_object

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
