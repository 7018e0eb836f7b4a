"""Protocol Buffers messages ⇄ plain values, by field name and without losing a type."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from processor.codec.binary_float import binary_float
from processor.record import Value


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
            if _is_map(field):
                inner = field.message_type.fields_by_name["value"]
                record[field.name] = {_key_text(key): _plain(inner, value[key]) for key in value}
            else:
                record[field.name] = [_plain(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            record[field.name] = _plain(field, getattr(message, field.name))
    return record


def to_message(message: Value, record: Value, path: str) -> None:
    """Set the fields of an empty message.

    Raises:
        TypeError: what the schema does not take; the message names the path.
    """
    if type(record) is not dict:
        raise TypeError(
            f"{path or 'the record'} is {type(record).__name__}; {message.DESCRIPTOR.full_name} is an object"
        )
    for name, value in record.items():
        place = f"{path}/{name}"
        field = message.DESCRIPTOR.fields_by_name.get(name) if _is_ascii(name) else None
        if field is None:
            raise TypeError(f"{place}: {message.DESCRIPTOR.full_name} has no such field")
        try:
            _set(message, field, value, place)
        except (ValueError, OverflowError) as error:
            raise TypeError(f"{place}: {error}") from None
        except TypeError as error:
            # Of those, ours say the path already.
            raise TypeError(str(error) if str(error).startswith(path + "/") else f"{place}: {error}") from None
    for name in record:
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.has_presence and not message.HasField(name):
            raise TypeError(f"{path}/{name}: the oneof {field.containing_oneof.name} has another field set; give one")


def _is_ascii(name: object) -> bool:
    """Whether it may be the name of a field: the library cannot look up anything else."""
    return isinstance(name, str) and name.isascii()


def _set(message: Value, field: FieldDescriptor, value: Value, place: str) -> None:
    if _is_map(field):
        _set_map(getattr(message, field.name), field, value, place)
    elif field.is_repeated:
        if type(value) is not list:
            raise TypeError(f"{place} is {type(value).__name__}; the field is repeated")
        target = getattr(message, field.name)
        for item in value:
            if field.message_type is not None:
                to_message(target.add(), item, place)
            else:
                target.append(_scalar(field, item))
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        to_message(inner, value, place)
    else:
        setattr(message, field.name, _scalar(field, value))


def _set_map(target: Value, field: FieldDescriptor, value: Value, place: str) -> None:
    if type(value) is not dict:
        raise TypeError(f"{place} is {type(value).__name__}; the field is a map")
    keys, values = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    for text, item in value.items():
        key = _key(keys, text)
        if values.message_type is not None:
            to_message(target[key], item, f"{place}/{text}")
        else:
            target[key] = _scalar(values, item)


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return bool(field.is_repeated and kind is not None and kind.GetOptions().map_entry)


def _plain(field: FieldDescriptor, value: Value) -> Value:
    if field.message_type is not None:
        return from_message(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value


def _scalar(field: FieldDescriptor, value: Value) -> Value:
    """What to set: the library takes no names of enums, and takes some types for others."""
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


def _key_text(key: Value) -> str:
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
