"""Unknown fields of a protobuf message ⇄ members of its record, so that a merge keeps the fields of a newer publisher.

A member is named by the field's number; names of known fields do not begin with a digit. Its value is the bytes of the
field in the message, with tags, all of its occurrences: a delta that has the field, too, replaces them.
"""

from __future__ import annotations

import struct

from google.protobuf import unknown_fields
from google.protobuf.message import DecodeError

from processor.record import Value

_VARINT, _FIXED64, _BYTES, _GROUP, _FIXED32, _GROUP_END = 0, 1, 2, 3, 5, 4


def unknown_members(message: Value) -> dict[str, bytes]:
    """The unknown fields of a message by their numbers, those of messages in it not included."""
    members: dict[int, bytearray] = {}
    for field in unknown_fields.UnknownFieldSet(message):
        # A message may hold half a million of one number: no copy of those before.
        written = members.get(field.field_number)
        if written is None:
            written = members[field.field_number] = bytearray()
        _write(field, written)
    return {str(number): bytes(written) for number, written in members.items()}


def set_unknown(message: Value, name: str, value: Value) -> None:
    """Add an unknown field to a message.

    A field whose number the message knows is unknown, too, where it is of another type, such as a text for a number.

    Raises:
        TypeError: the value is not the bytes of an unknown field of this number.
    """
    probe = type(message)()
    try:
        is_read = type(value) is bytes and probe.MergeFromString(value) == len(value)
    except DecodeError:
        is_read = False
    numbers = {str(field.field_number) for field in unknown_fields.UnknownFieldSet(probe)}
    if not is_read or probe.ListFields() or numbers != {name}:
        raise TypeError(f"{value!r:.50} is not an unknown field {name} as bytes, with its tag")
    message.MergeFromString(value)


def _write(field: Value, written: bytearray) -> None:
    """Append one occurrence of a field, with its tag."""
    kind, number, data = field.wire_type, field.field_number, field.data
    _write_varint(number << 3 | kind, written)
    if kind == _VARINT:
        _write_varint(data, written)
    elif kind == _FIXED64:
        written += struct.pack("<Q", data)
    elif kind == _FIXED32:
        written += struct.pack("<I", data)
    elif kind == _BYTES:
        _write_varint(len(data), written)
        written += data
    else:
        assert kind == _GROUP, kind
        for inner in data:
            _write(inner, written)
        _write_varint(number << 3 | _GROUP_END, written)


def _write_varint(number: int, written: bytearray) -> None:
    """Append a number in groups of seven bits, lowest first."""
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
