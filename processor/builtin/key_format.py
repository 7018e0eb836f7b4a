"""Reads Kafka keys that publishers do not write as texts: Connect's and Debezium's JSON, Java's integers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from processor.api import RecordRejected, Value
from processor.values.kinds import MISSING
from processor.values.pointer import find, names

if TYPE_CHECKING:
    from processor.merge import KeyFields

ReadKey: TypeAlias = Callable[[bytes], bytes]
"""Turns a Kafka key as its publisher wrote it into the text of the key. It raises RecordRejected, `missing_key`."""

_INTEGERS: Final = {4: struct.Struct(">i"), 8: struct.Struct(">q")}
_EXTENDED: Final = ("$oid", "$uuid", "$numberInt", "$numberLong", "$symbol")
"""The kinds of MongoDB's extended JSON that can be keys: `{"$oid": "596e…"}`."""
_ENVELOPE: Final = frozenset(("schema", "payload"))
"""The members of a key that Connect's JsonConverter writes with `schemas.enable`."""


def key_reader(
    key_format: Literal["text", "json", "int"], key: KeyFields, key_names: Mapping[str, str]
) -> ReadKey | None:
    """The function that reads a topic's Kafka keys; None where they are texts already.

    Args:
        key_format: the topic's setting.
        key: its key fields.
        key_names: the names of key fields in JSON keys, by JSON Pointer, where they differ.
    """
    if key_format == "text":
        return None
    return _read_integer if key_format == "int" else _json_reader(key, key_names)


def _read_integer(key: bytes) -> bytes:
    """A big-endian signed integer of 4 or 8 bytes, as Java's IntegerSerializer and LongSerializer write it."""
    integer = _INTEGERS.get(len(key))
    if integer is None:
        raise RecordRejected("missing_key", f"the Kafka key has {len(key)} bytes; key_format int reads 4 or 8")
    (number,) = integer.unpack(key)
    return b"%d" % number


def _json_reader(key: KeyFields, key_names: Mapping[str, str]) -> ReadKey:
    """A reader of JSON keys: an object of the key fields, or the value of the only one."""
    places = [(key_names.get(pointer), names(pointer)) for pointer in key.pointers]

    def read(data: bytes) -> bytes:
        try:
            value: Value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RecordRejected("missing_key", f"the Kafka key is not JSON, as key_format says: {error}") from None
        if type(value) is dict and value.keys() == _ENVELOPE:
            value = value["payload"]
        if type(value) is dict and key_names:
            values = [
                find(value, path) if name is None else _identifier(value.get(name, MISSING)) for name, path in places
            ]
            text = None if MISSING in values else key.text_of_values(values if len(values) > 1 else values[0])
        else:
            text = key.text(value) if type(value) is dict else key.text_of_values(value)
        if text is None:
            fields = ", ".join(key_names.get(pointer, pointer) for pointer in key.pointers)
            raise RecordRejected(
                "missing_key",
                f"the Kafka key {data!r:.100} does not have the key fields {fields}; key_names maps other names",
            )
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise RecordRejected("missing_key", f"the Kafka key {data!r:.100} has half a surrogate pair") from None

    return read


def _identifier(value: Value) -> Value:
    """The value of a key field; of MongoDB's extended JSON, which its connector writes as a text, the value in it."""
    if type(value) is str and value[:1] in ("{", '"'):
        try:
            parsed: Value = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return parsed if type(parsed) is str else _unwrapped(parsed, value)
    return _unwrapped(value, value)


def _unwrapped(value: Value, otherwise: Value) -> Value:
    if type(value) is dict and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind in _EXTENDED and type(inner) in (str, int):
            return inner
    return otherwise
