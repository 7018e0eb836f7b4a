"""Reads Kafka keys that publishers do not write as texts: Connect's and Debezium's JSON, Java's integers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from processor.api import RecordRejected, Value

if TYPE_CHECKING:
    from processor.merge import KeyFields

ReadKey: TypeAlias = Callable[[bytes], bytes]
"""Turns a Kafka key as its publisher wrote it into the text of the key. It raises RecordRejected, `missing_key`."""

_INTEGERS: Final = {4: struct.Struct(">i"), 8: struct.Struct(">q")}
_ENVELOPE: Final = frozenset(("schema", "payload"))
"""The members of a key that Connect's JsonConverter writes with `schemas.enable`."""


def key_reader(key_format: Literal["text", "json", "int"], key: KeyFields) -> ReadKey | None:
    """The function that reads a topic's Kafka keys; None where they are texts already.

    Args:
        key_format: the topic's setting.
        key: its key fields.
    """
    if key_format == "text":
        return None
    return _read_integer if key_format == "int" else _json_reader(key)


def _read_integer(key: bytes) -> bytes:
    """A big-endian signed integer of 4 or 8 bytes, as Java's IntegerSerializer and LongSerializer write it."""
    integer = _INTEGERS.get(len(key))
    if integer is None:
        raise RecordRejected("missing_key", f"the Kafka key has {len(key)} bytes; key_format int reads 4 or 8")
    (number,) = integer.unpack(key)
    return b"%d" % number


def _json_reader(key: KeyFields) -> ReadKey:
    """A reader of JSON keys: an object of the key fields, or the value of the only one."""

    def read(data: bytes) -> bytes:
        try:
            value: Value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RecordRejected("missing_key", f"the Kafka key is not JSON, as key_format says: {error}") from None
        if type(value) is dict and value.keys() == _ENVELOPE:
            value = value["payload"]
        text = key.text(value) if type(value) is dict else key.text_of_values(value)
        if text is None:
            raise RecordRejected(
                "missing_key", f"the Kafka key {data!r:.100} does not have the key fields {', '.join(key.pointers)}"
            )
        return text.encode()

    return read
