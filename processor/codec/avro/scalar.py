"""Avro's scalars: logical types, exact both ways, and the resolution of types between two schemas.

fastavro's own logical types are switched off: theirs round values that the schema does not allow, and take a timestamp
for a date.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact
from typing import Any, Final, NamedTuple, TypeAlias

from processor.errors import RecordRejected
from processor.record import Value

Conversion: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_LOCAL: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local time has no zone
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICRO: Final = dt.timedelta(microseconds=1)
_NUMBERS: Final = frozenset((int, float))
_FROM_TEXT: Final[dict[type, Conversion]] = {
    uuid.UUID: uuid.UUID,
    dt.date: dt.date.fromisoformat,
    dt.time: dt.time.fromisoformat,
    dt.datetime: dt.datetime.fromisoformat,
}
_DAY_MICROS: Final = 86_400_000_000


class Logical(NamedTuple):
    """One logical type."""

    kind: type
    """Python's type of its values."""
    read: Conversion
    """From the form on the wire; ValueError or OverflowError where Python's type does not hold it."""
    write: Conversion
    """To the form on the wire; TypeError or ValueError where the value is none, or would lose something."""


def logical_of(word: str, body: Mapping[str, Any]) -> Logical | None:
    """The logical type of a schema; None where it has none, or one that means nothing here."""
    name = body.get("logicalType")
    if name == "decimal" and word in {"bytes", "fixed"}:
        precision, scale = body.get("precision"), body.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= _PRECISION_MAX:
            return _decimal(precision, scale, body.get("size"))
        return None
    if name == "uuid" and word == "fixed" and body["size"] == 16:
        return Logical(uuid.UUID, lambda raw: uuid.UUID(bytes=raw), lambda value: _is(uuid.UUID, value).bytes)
    return _PLAIN.get((word, str(name)))


_PRECISION_MAX: Final = 10_000
"""Most digits of a decimal: a schema that says more is not worth the seconds that a value of it takes."""


def _decimal(precision: int, scale: int, size: int | None) -> Logical:
    context = Context(prec=precision, traps=[Inexact])
    unit = Decimal(1).scaleb(-scale)
    limit = 10**precision
    size_max = size or (limit.bit_length() // 8 + 1)

    def read(raw: bytes) -> Decimal:
        if len(raw) > size_max:
            raise ValueError(f"a decimal of {len(raw)} bytes; its precision is {precision}")
        unscaled = int.from_bytes(raw, signed=True)
        if not -limit < unscaled < limit:
            raise ValueError(f"a decimal of more than its precision's {precision} digits")
        return Decimal(unscaled).scaleb(-scale, context)

    def write(value: Any) -> bytes:
        if type(value) in _NUMBERS:
            # JSON's numbers: the digits as they are written.
            value = Decimal(repr(value))
        if not isinstance(value, Decimal):
            raise TypeError(f"{type(value).__name__} where Decimal is meant")
        try:
            unscaled = int(value.quantize(unit, context=context).scaleb(scale, context))
        except (ArithmeticError, ValueError):  # ValueError: what is left of a number that is not finite.
            raise ValueError(f"{value} is no decimal({precision}, {scale})") from None
        return unscaled.to_bytes(
            size or ((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1), signed=True
        )

    return Logical(Decimal, read, write)


def _is(kind: type, value: Any) -> Any:
    """The value, also from the text that it is shown as in JSON, so that values read can be published again."""
    if type(value) is str and kind in _FROM_TEXT:
        return _FROM_TEXT[kind](value)
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} where {kind.__name__} is meant")
    return value


def _stamp(epoch: dt.datetime, micros: int) -> Logical:
    """A timestamp that counts in so many microseconds."""
    aware = epoch.tzinfo is not None

    def read(raw: int) -> dt.datetime:
        return epoch + dt.timedelta(microseconds=raw * micros)

    def write(value: dt.datetime) -> int:
        stamp = _is(dt.datetime, value)
        if (stamp.tzinfo is not None) is not aware:
            raise TypeError("a timestamp has a time zone, a local timestamp has none")
        return _whole((stamp - epoch) // _MICRO, micros)

    return Logical(dt.datetime, read, write)


def _time(micros: int) -> Logical:
    def read(raw: int) -> dt.time:
        if not 0 <= raw * micros < _DAY_MICROS:
            raise ValueError(f"{raw} is no time of a day")
        return (_EPOCH_LOCAL + dt.timedelta(microseconds=raw * micros)).time()

    def write(value: dt.time) -> int:
        moment = _is(dt.time, value)
        if moment.tzinfo is not None:
            raise TypeError("a time of a day has no time zone")
        since = dt.datetime.combine(_EPOCH_LOCAL, moment) - _EPOCH_LOCAL
        return _whole(since // _MICRO, micros)

    return Logical(dt.time, read, write)


def _whole(total: int, micros: int) -> int:
    count, rest = divmod(total, micros)
    if rest:
        raise ValueError(f"{rest} µs more than the type's milliseconds hold")
    return count


def _write_date(value: dt.date) -> int:
    return int(_is(dt.date, value).toordinal()) - _EPOCH_DAY


_PLAIN: Final = {
    ("string", "uuid"): Logical(uuid.UUID, uuid.UUID, lambda value: str(_is(uuid.UUID, value))),
    ("int", "date"): Logical(dt.date, lambda raw: dt.date.fromordinal(raw + _EPOCH_DAY), _write_date),
    ("int", "time-millis"): _time(1000),
    ("long", "time-micros"): _time(1),
    ("long", "timestamp-millis"): _stamp(_EPOCH, 1000),
    ("long", "timestamp-micros"): _stamp(_EPOCH, 1),
    ("long", "local-timestamp-millis"): _stamp(_EPOCH_LOCAL, 1000),
    ("long", "local-timestamp-micros"): _stamp(_EPOCH_LOCAL, 1),
}

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
    if w_logical is not None and r_logical is not None and _attributes(w_word, w_body) != _attributes(r_word, r_body):
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
    if w_word == "boolean":
        return _Booleans(where).__getitem__
    if w_word == "int" and read is None:
        return int_check(where) if promote is None else _float_of_int(where)
    if promote is None and read is None:
        return None
    return _checked(promote, read, where)


def int_check(where: str) -> Convert:
    """The check of a number on the wire, where an `int` looks as a `long` does."""

    def convert(raw: int) -> Value:
        if -0x8000_0000 <= raw <= 0x7FFF_FFFF:
            return raw
        raise RecordRejected("undecodable", f"{where}: {raw} is no int")

    return convert


def _float_of_int(where: str) -> Convert:
    check = int_check(where)
    return lambda raw: float(check(raw))


class _Booleans(dict[int, bool]):
    """The booleans of the numbers 0 and -1, as which the bytes 00 and 01 are read."""

    def __init__(self, where: str) -> None:
        super().__init__({0: False, -1: True})
        self._where = where

    def __missing__(self, raw: int) -> bool:
        byte = raw * 2 if raw > 0 else -raw * 2 - 1
        raise RecordRejected("undecodable", f"{self._where}: {byte:02x} is no byte of a boolean")


def _attributes(word: str, body: Any) -> tuple[Any, ...]:
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
