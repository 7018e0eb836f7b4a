"""The codecs of Protocol Buffers messages: bytes, messages that are published whole, and messages with deltas."""

from __future__ import annotations

from typing import ClassVar, Final

from google.protobuf.message import DecodeError, EncodeError

from processor.codec.contract import Codec
from processor.codec.depth import check_depth, check_writable_depth
from processor.codec.frame import SCHEMA_ID_HEADER, without_protobuf_frame
from processor.codec.protobuf.presence import PresentFields
from processor.codec.protobuf.values import from_message, to_message
from processor.errors import RecordRejected
from processor.record import Value

_MANY_BYTES: Final = 4096
"""A message of so many bytes may hold so many others that it is worth a look whether any has unknown fields."""


class BytesCodec(Codec):
    """Protobuf messages without a schema: any bytes."""

    can_delta: ClassVar[bool] = False

    def decode(self, data: bytes) -> Value:
        """The message itself."""
        return data

    def encode(self, value: Value) -> bytes:
        """The message itself.

        Raises:
            TypeError: it is not `bytes`.
        """
        if isinstance(value, bytes):
            return value
        raise TypeError(f"a protobuf message without a schema is bytes; this is {type(value).__name__}")


class _Messages(Codec):
    """Protobuf messages of one type."""

    def __init__(self, make: Value, max_depth: int) -> None:
        """Take the class of the messages, and how deep they may be nested."""
        self._make = make
        self._max_depth = max_depth

    def _parsed(self, data: bytes) -> Value:
        """A message of the library's, parsed without its frame."""
        message = self._make()
        body = without_protobuf_frame(data)
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            name = message.DESCRIPTOR.full_name
            raise RecordRejected("undecodable", f"not a {name}: {error} (of {len(body)} bytes)") from None
        return message

    def _filled(self, record: Value) -> Value:
        """A message of the library's with the fields of a record."""
        message = self._make()
        try:
            to_message(message, record, "", has_presence=self.can_delta)
        except RecursionError as error:
            raise TypeError(f"{message.DESCRIPTOR.full_name}: {error}") from None
        return message


class WholeCodec(_Messages):
    """Messages of which an absent field cannot be distinguished from a default: full messages only.

    Merging has no part in them: the publisher's bytes are stored and forwarded.
    """

    can_delta: ClassVar[bool] = False

    def decode(self, data: bytes) -> Value:
        """Parse a message.

        Raises:
            RecordRejected: `undecodable` or `too_deep`.
        """
        value = from_message(self._parsed(data))
        check_depth(value, self._max_depth)
        return value

    def encode(self, value: Value) -> bytes:
        """Write a message, without a frame.

        Raises:
            TypeError: a field that the message does not have, a value that the field does not take, two fields of one
                oneof, or a nesting deeper than `max_depth` or than the library reads.
        """
        message = self._filled(value)
        try:
            data: bytes = message.SerializeToString()
            self._make().ParseFromString(data)
        except (EncodeError, DecodeError, RecursionError) as error:
            raise TypeError(f"{message.DESCRIPTOR.full_name}: {error}") from None
        check_writable_depth(value, self._max_depth)
        return data


class DeltaCodec(_Messages):
    """Messages that distinguish an absent field from a default: a delta is a message with some of the fields.

    Records are written without a frame, with the fields that this schema does not know.
    """

    completes: ClassVar[bool] = True
    header_names: ClassVar[frozenset[str]] = frozenset((SCHEMA_ID_HEADER,))

    def __init__(self, make: Value, max_depth: int) -> None:
        """Take the class of the messages, and how deep they may be nested."""
        super().__init__(make, max_depth)
        self._fields = PresentFields()

    def decode(self, data: bytes) -> Value:
        """Parse a record or a delta: the fields that are present.

        Raises:
            RecordRejected: `undecodable` or `too_deep`.
        """
        message = self._parsed(data)
        # To look into each of many messages for unknown fields takes longer than to read them.
        has_unknown = len(data) < _MANY_BYTES or _has_unknown(message)
        return self._fields.read(message, self._max_depth, has_unknown=has_unknown)

    def encode(self, value: Value) -> bytes:
        """Write a record or a delta, without a frame; a delta may lack required fields.

        Raises:
            TypeError: a field that the message does not have, or a value that the field does not take.
        """
        message = self._filled(value)
        try:
            data: bytes = message.SerializePartialToString(deterministic=True)
        except EncodeError as error:
            raise TypeError(f"{message.DESCRIPTOR.full_name}: {error}") from None
        return data

    def complete(self, record: Value) -> bool:
        """Remove in place the fields that the message cannot hold with the rest: empty arrays, the loser of a oneof.

        Raises:
            RecordRejected: `schema_mismatch`: a required field is missing.
        """
        return self._fields.complete(self._make.DESCRIPTOR, record)


def _has_unknown(message: Value) -> bool:
    """Return whether a message, or any in it, has unknown fields."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())
