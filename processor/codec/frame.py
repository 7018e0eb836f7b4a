"""Confluent's frame: the bytes that its serializers write before a message, to name the message's schema.

A frame is a zero byte and the schema's id in four bytes, big-endian, or a one byte and the schema's GUID in sixteen. In
front of a protobuf message the path to the message type within its file follows, as zigzag varints: how many there are,
then each of them. A client that puts the frame into a header instead uses the same bytes (`SCHEMA_ID_HEADER`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from processor.errors import RecordRejected

SCHEMA_ID_HEADER: Final = "__value_schema_id"
"""The header of Confluent's clients for the schema of a value without a frame (`header_schema_id_serializer`)."""

_SIZES: Final = {0: 5, 1: 17}
_VARINT_BYTES_MAX: Final = 5  # of a 32-bit number
_PATH_MAX: Final = 100
"""Longest path to a message type; protoc nests no message type deeper than 32."""


def id_frame(schema_id: int) -> bytes:
    """The frame of a schema with this id."""
    return struct.pack(">bI", 0, schema_id)


def frame_size(data: bytes) -> int:
    """The bytes of the frame that a message begins with, by its first byte; 0 where that byte begins no frame.

    The message may be shorter than its frame should be. Bytes 0 and 1 begin neither a JSON text nor a protobuf message.
    """
    return _SIZES.get(data[0], 0) if data else 0


def without_frame(data: bytes) -> bytes:
    """A message without the frame that it may begin with.

    Raises:
        RecordRejected: `undecodable`: the message ends within its frame.
    """
    size = frame_size(data)
    if len(data) < size:
        raise _ends_within(data)
    return data[size:] if size else data


def without_protobuf_frame(data: bytes) -> bytes:
    """A protobuf message without the frame that it may begin with, and without the path to its type.

    Raises:
        RecordRejected: as `protobuf_frame_size`.
    """
    size = protobuf_frame_size(data)
    return data[size:] if size else data


def protobuf_frame_size(data: bytes) -> int:
    """The bytes of the frame and path that a protobuf message begins with; 0 where it begins with none.

    Raises:
        RecordRejected: `undecodable`: the message ends within its frame, a number in the path is no 32-bit varint, or
            the path is too long.
    """
    at = begin = frame_size(data)
    if not at:
        return 0
    try:
        count, at = _varint(data, at)
        if not 0 <= count <= _PATH_MAX:
            raise RecordRejected(
                "undecodable", f"a Confluent frame with a path of {count} steps at byte {begin}; {_PATH_MAX} at most"
            )
        for _ in range(count):
            _, at = _varint(data, at)
    except IndexError:
        raise _ends_within(data) from None
    return at


def path_in_frame(frame: bytes) -> tuple[int, ...]:
    """The path to the message type in a complete frame of a protobuf message.

    A path without steps stands for the first message type, as in Confluent's serializers.
    """
    count, at = _varint(frame, frame_size(frame))
    path = []
    for _ in range(count):
        step, at = _varint(frame, at)
        path.append(step)
    return tuple(path) or (0,)


def protobuf_frame(schema_id: int, path: Sequence[int]) -> bytes:
    """The frame of the protobuf messages of one type.

    Args:
        schema_id: the id of the file's schema.
        path: the positions of the message type in the file, and of the types inside it.
    """
    numbers = [0] if list(path) == [0] else [len(path), *path]
    return id_frame(schema_id) + b"".join(map(_written, numbers))


def _written(number: int) -> bytes:
    """A number that is not negative as a zigzag varint."""
    rest = number << 1
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and the place after it."""
    number = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + index + 1
    raise RecordRejected("undecodable", f"a Confluent frame with a number of more than 32 bits at byte {at}")


def _ends_within(data: bytes) -> RecordRejected:
    return RecordRejected("undecodable", f"a Confluent frame that ends at byte {len(data)}")
