"""Resolution of types that are neither record, array, map, union nor enum: promotions and logical types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from processor.codec.avro.logical import Logical, logical_of
from processor.errors import RecordRejected
from processor.record import Value

Convert: TypeAlias = Callable[[Any], Value]
"""From a raw value of the writer's type to a value of the reader's."""

_PROMOTIONS: Final[dict[tuple[str, str], Convert | None]] = {
    ("int", "long"): None,
    ("int", "float"): float,
    ("int", "double"): float,
    ("long", "float"): float,
    ("long", "double"): float,
    ("float", "double"): None,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}


class Mismatch(Exception):
    """A writer's type that a reader's type cannot take; where, and which."""


def scalar(w_word: str, w_body: Any, r_word: str, r_body: Any, where: str) -> Convert | None:
    """The conversion of a raw value; None where it is itself.

    Args:
        w_word: the writer's type.
        w_body: its definition.
        r_word: the reader's type.
        r_body: its definition.
        where: the place in the record, for the error.

    Raises:
        Mismatch: the reader's type takes none of the writer's.
    """
    w_logical, r_logical = logical_of(w_word, w_body), logical_of(r_word, r_body)
    if w_logical is not None and r_logical is not None and _told(w_word, w_body) != _told(r_word, r_body):
        # Other units or another scale, of one kind: the value is the same if it fits.
        if w_logical.kind is not r_logical.kind:
            raise Mismatch(f"{where}: {w_body['logicalType']} is no {r_body['logicalType']}")
        return _fitting(w_logical, r_logical, where)
    if w_word == r_word:
        if w_word == "fixed" and w_body["size"] != r_body["size"]:
            raise Mismatch(f"{where}: {w_body['size']} bytes are not {r_body['size']}")
        promote = None
    elif (w_word, r_word) in _PROMOTIONS:
        promote = _PROMOTIONS[w_word, r_word]
    else:
        raise Mismatch(f"{where}: {w_word} is no {r_word}")
    # A logical type that only one side knows is an annotation: the raw value is the same.
    read = None if r_logical is None else r_logical.read
    if promote is None and read is None:
        return None
    return _checked(promote, read, where)


def _told(word: str, body: Any) -> tuple[Any, ...]:
    """The attributes that distinguish logical types."""
    return (word, body["logicalType"], body.get("scale", 0), body.get("precision"), body.get("size"))


def _checked(promote: Convert | None, read: Convert | None, where: str) -> Convert:
    first = promote or read
    second = read if promote else None
    assert first is not None, "there is something to do"

    def convert(raw: Any) -> Value:
        try:
            value = first(raw)
            return value if second is None else second(value)
        except (ValueError, OverflowError) as error:
            raise RecordRejected("undecodable", f"{where}: {error!s:.200}") from None

    return convert


def _fitting(writer: Logical, reader: Logical, where: str) -> Convert:
    def convert(raw: Any) -> Value:
        try:
            value = writer.read(raw)
        except (ValueError, OverflowError) as error:
            raise RecordRejected("undecodable", f"{where}: {error!s:.200}") from None
        try:
            return reader.read(reader.write(value))
        except (ValueError, OverflowError) as error:
            raise RecordRejected("schema_mismatch", f"{where}: {error!s:.200}") from None

    return convert
