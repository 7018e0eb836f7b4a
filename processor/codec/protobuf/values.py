"""Protocol Buffers messages ⇄ plain values, by field name and without losing a type.

Unknown fields are members too, so that a merge keeps the fields of a newer publisher.
One is named by the field's number; names of known fields do not begin with a digit. Its value is the bytes of the
field in the message, with tags, all of its occurrences: a delta that has the field, too, replaces them.
"""

from __future__ import annotations

import struct

from google.protobuf import unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from processor.codec.value_checks import binary_float
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


def from_message(message: Value) -> Value:
    """The fields of a message by name, in the schema's order.

    A field that cannot be absent (proto3 without `optional`) has its default; one that can (`optional`, a oneof, a
    message) is there only where it is set. 64-bit integers are ints, bytes are bytes, an enum is its name, or its
    number where it has none; a map is an object whose keys are texts.
    """
    record: Value = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            value = getattr(message, field.name)
            if is_map(field):
                inner = field.message_type.fields_by_name["value"]
                record[field.name] = {key_text(key): _plain(inner, value[key]) for key in value}
            else:
                record[field.name] = [_plain(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            record[field.name] = _plain(field, getattr(message, field.name))
    return record


def to_message(message: Value, record: Value, path: str, *, has_presence: bool = False) -> None:
    """Set the fields of an empty message.

    Args:
        message: the message.
        record: its fields by name; extensions by their full name in brackets, unknown fields by their number.
        path: where it is, as a JSON Pointer.
        has_presence: whether a field that is not written counts as left out: then an empty array or map is an error,
            since no message can hold one.

    Raises:
        TypeError: a value that the schema does not take; the message names the path.
    """
    if not isinstance(record, dict):
        raise TypeError(
            f"{path or 'the record'} is {type(record).__name__}; {message.DESCRIPTOR.full_name} is an object"
        )
    for name, value in record.items():
        place = f"{path}/{name}"
        field = field_of(message.DESCRIPTOR, name)
        if field is None and not (type(name) is str and name.isdecimal()):
            raise TypeError(f"{place}: {message.DESCRIPTOR.full_name} has no such field")
        try:
            if field is None:
                set_unknown(message, name, value)
            else:
                _set(message, field, value, place, has_presence=has_presence)
        except (ValueError, OverflowError) as error:
            raise TypeError(f"{place}: {error}") from None
        except TypeError as error:
            # Of those, ours say the path already.
            raise TypeError(str(error) if str(error).startswith(path + "/") else f"{place}: {error}") from None
    for name in record:
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is not None and field.containing_oneof is not None and not message.HasField(name):
            raise TypeError(f"{path}/{name}: the oneof {field.containing_oneof.name} has another field set; give one")


def _set(message: Value, field: FieldDescriptor, value: Value, place: str, *, has_presence: bool) -> None:
    if field.is_repeated and has_presence and not value and isinstance(value, list | dict):
        raise TypeError(f"{place} is empty, which no message can say; leave the field out, or name it in header remove")
    if is_map(field):
        _set_map(_member(message, field), field, value, place, has_presence=has_presence)
    elif field.is_repeated:
        if type(value) is not list:
            raise TypeError(f"{place} is {type(value).__name__}; the field is repeated")
        target = _member(message, field)
        for item in value:
            if field.message_type is not None:
                to_message(target.add(), item, place)
            else:
                target.append(_scalar(field, item))
    elif field.message_type is not None:
        inner = _member(message, field)
        inner.SetInParent()
        to_message(inner, value, place, has_presence=has_presence)
    elif field.is_extension:
        message.Extensions[field] = _scalar(field, value)
    else:
        setattr(message, field.name, _scalar(field, value))


def _set_map(target: Value, field: FieldDescriptor, value: Value, place: str, *, has_presence: bool) -> None:
    if not isinstance(value, dict):
        raise TypeError(f"{place} is {type(value).__name__}; the field is a map")
    keys, values = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    for text, item in value.items():
        key = _key(keys, text)
        if values.message_type is not None:
            to_message(target[key], item, f"{place}/{text}", has_presence=has_presence)
        else:
            target[key] = _scalar(values, item)


def _member(message: Value, field: FieldDescriptor) -> Value:
    """The value of a field in a message: a message, an array or a map."""
    return message.Extensions[field] if field.is_extension else getattr(message, field.name)


def field_of(message: Descriptor, name: Value) -> FieldDescriptor | None:
    """The field that a member of a record stands for; None if the message has none of that name."""
    if type(name) is str and name[:1] == "[":
        try:
            extension = message.file.pool.FindExtensionByName(name[1:-1])
        except KeyError:
            return None
        return extension if extension.containing_type is message and name[-1] == "]" else None
    # The library cannot look up anything else.
    return message.fields_by_name.get(name) if isinstance(name, str) and name.isascii() else None


def member_name(field: FieldDescriptor) -> str:
    """The name of a field's member in a record: that of an extension is its full name in brackets."""
    return f"[{field.full_name}]" if field.is_extension else field.name


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    kind = field.message_type
    return bool(field.is_repeated and kind is not None and kind.GetOptions().map_entry)


def _plain(field: FieldDescriptor, value: Value) -> Value:
    return plain_scalar(field, value) if field.message_type is None else from_message(value)


def plain_scalar(field: FieldDescriptor, value: Value) -> Value:
    """A scalar as a plain value: an enum is its name, or its number where it has none."""
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value


def _scalar(field: FieldDescriptor, value: Value) -> Value:
    """The value to set: the library takes no names of enums, and takes some types for others."""
    if field.enum_type is not None and type(value) is str:
        named = field.enum_type.values_by_name.get(value)
        if named is None:
            raise ValueError(f"{field.enum_type.full_name} has no value {value!r}")
        return named.number
    if isinstance(value, bool) is not (field.cpp_type == FieldDescriptor.CPPTYPE_BOOL):
        raise TypeError(f"{value!r:.50} is not what the field takes")
    if isinstance(value, bytes) is not (field.type == FieldDescriptor.TYPE_BYTES):
        raise TypeError(f"{value!r:.50} is not what the field takes")
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return binary_float(value, is_short=field.type == FieldDescriptor.TYPE_FLOAT)
    return value


def key_text(key: Value) -> str:
    """The key of a map as the name of a member."""
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)


def _key(field: FieldDescriptor, text: str) -> Value:
    """The other way."""
    if type(text) is not str:
        raise TypeError(f"the key {text!r:.50} of a map is no text")
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"true": True, "false": False}[text] if text in ("true", "false") else _no_key(text)
    number = int(text) if text.removeprefix("-").isdecimal() and text.isascii() else _no_key(text)
    return number if str(number) == text else _no_key(text)


def _no_key(text: str) -> Value:
    raise ValueError(f"{text!r} is no key of the map")
