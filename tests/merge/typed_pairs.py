"""Pairs of values of every kind of every message type, with their order and their sum.

The sums are literals, or computed here with fractions and without Sowstream's code.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

import msgpack
from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp as BsonTimestamp

NO_SUM: Final = object()
"""The sum of two values that are no numbers: the delta is rejected, and so is the first value."""
TOO_LARGE: Final = object()
"""The sum of two numbers that the message type cannot hold: the delta is rejected."""


@dataclass(frozen=True)
class Pair:
    """Two values of one kind."""

    name: str
    kind: str
    """The kind, as in `processor.values.kinds.ValueKind`."""
    low: Any
    high: Any
    """The value that comes after `low`, if the kind has an order."""
    total: Any = NO_SUM
    ordered: bool = True
    avro: Any = None
    """The Avro type of a field that holds both."""


def nearest(one: float, other: float) -> float:
    """The double nearest to the sum of two doubles as they are written."""
    return float(Fraction(repr(one)) + Fraction(repr(other)))


def instant(text: str) -> dt.datetime:
    """A datetime in UTC."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


TEXTS = [
    Pair("text", "text", "a", "b"),
    Pair("numeric text", "text", "9", "10", "19"),
    Pair("numeric text of fractions", "text", "0.1", "0.20", "0.30"),
    Pair("numeric text beyond 64 bits", "text", str(2**70), str(2**70 + 1), str(2**71 + 1)),
    Pair("the text NaN", "text", "NaN", "nan"),
    Pair("ISO time without and with a fraction", "text", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.5Z"),
    Pair("ISO times of two zones", "text", "2024-01-01T10:00:00+02:00", "2024-01-01T09:00:00Z"),
    Pair("ISO times of nanoseconds", "text", "2024-01-01T00:00:00.000000001Z", "2024-01-01T00:00:00.00000001Z"),
    Pair("ISO dates", "text", "2024-01-31", "2024-02-01"),
]
BASIC = [
    *TEXTS,
    Pair("small int", "number", 5, 7, 12),
    Pair("int of 64 bits", "number", 2**53 + 1, 2**53 + 3, 2**54 + 4),
    Pair("boolean", "boolean", False, True, ordered=False),
    Pair("array", "array", ["x", "y"], ["y", "z"], ordered=False),
    Pair("array of numbers", "array", [1, 2], [1, 3], ordered=False),
    Pair("object", "object", {"a": 1}, {"b": 2}, ordered=False),
]
DOUBLES = [
    Pair("double", "number", 0.1, 0.2, 0.3),
    Pair("double without an exact sum", "number", 1 / 3, 98.1234567, nearest(1 / 3, 98.1234567)),
    Pair("int and double", "number", 5, 7.25, 12.25),
    Pair("the largest double", "number", 1.6e308, 1.7e308, TOO_LARGE),
    Pair("NaN", "number", float("nan"), float("nan"), ordered=False),
    Pair("infinity", "number", float("-inf"), float("inf"), ordered=False),
]
FIELDS = [*TEXTS, Pair("array", "array", ["x", "y"], ["y", "z"], ordered=False)]

MSGPACK = [
    *BASIC,
    *DOUBLES,
    Pair("the largest int", "number", 2**63, 2**63 + 1, TOO_LARGE),
    Pair("timestamp", "time", msgpack.Timestamp(5, 999_999_999), msgpack.Timestamp(6, 0)),
    Pair("timestamp before 1970", "time", msgpack.Timestamp(-5, 1), msgpack.Timestamp(-5, 2)),
    Pair("timestamp beyond the calendar", "time", msgpack.Timestamp(2**40, 9), msgpack.Timestamp(2**40, 10)),
    Pair("binary", "bytes", b"\x01", b"\x01\x00"),
    Pair("extension", "other", msgpack.ExtType(1, b"a"), msgpack.ExtType(1, b"b")),
]
PAIRS = {
    "json": [
        *BASIC,
        Pair("int beyond 63 bits", "number", 2**63 - 1, 2**63, 2**64 - 1),
        Pair("int beyond 64 bits", "number", 2**70, 2**70 + 1, 2**71 + 1),
        Pair("double", "number", Decimal("0.1"), Decimal("0.2"), Decimal("0.3")),
        Pair("double without an exact sum", "number", Decimal("98.1234567890123"), Decimal("1234567.891"),
             Decimal("1234666.0144567890123")),
        Pair("many digits", "number", Decimal("0.1234567890123456789"), Decimal("1.1234567890123456789"),
             Decimal("1.2469135780246913578")),
        Pair("int and double", "number", 5, Decimal("7.25"), Decimal("12.25")),
    ],
    "nvfix": FIELDS,
    "fix": FIELDS,
    "xml": [*FIELDS, Pair("object", "object", {"a": "1"}, {"b": "2"}, ordered=False)],
    "msgpack": MSGPACK,
    "bson": [
        *TEXTS,
        *DOUBLES,
        Pair("int32", "number", 5, 7, 12),
        Pair("int32 with a sum of 64 bits", "number", 5, 2**31 - 1, Int64(2**31 + 4)),
        Pair("int64", "number", Int64(1), Int64(2), Int64(3)),
        Pair("int32 and int64", "number", 5, Int64(7), Int64(12)),
        Pair("the largest int64", "number", Int64(2**63 - 2), Int64(2**63 - 1), TOO_LARGE),
        Pair("Decimal128", "number", Decimal128("9.50"), Decimal128("10.0"), Decimal128("19.50")),
        Pair("Decimal128 of 34 digits", "number", Decimal128("1" * 34), Decimal128("2" * 34), Decimal128("3" * 34)),
        Pair("Decimal128 of too many digits", "number", Decimal128("1E-30"), Decimal128("1E+30"), TOO_LARGE),
        Pair("Decimal128 and int", "number", 9, Decimal128("9.5"), Decimal128("18.5")),
        Pair("Decimal128 and double", "number", 0.1, Decimal128("0.2"), Decimal128("0.3")),
        Pair("NaN of Decimal128", "number", Decimal128("NaN"), Decimal128("NaN"), ordered=False),
        Pair("date", "time", instant("2024-01-01T00:00:00"), instant("2024-01-01T00:00:00.500")),
        Pair("date before the calendar", "time", DatetimeMS(-(2**60)), instant("2024-01-01T00:00:00")),
        Pair("date beyond the calendar", "time", DatetimeMS(2**59), DatetimeMS(2**59 + 1)),
        Pair("timestamp", "time", BsonTimestamp(5, 2), BsonTimestamp(6, 1)),
        Pair("ObjectId", "other", ObjectId("0" * 24), ObjectId("1" * 24)),
        Pair("binary", "bytes", b"\x01", b"\x01\x00"),
        Pair("boolean", "boolean", False, True, ordered=False),
        Pair("array", "array", ["x", "y"], ["y", "z"], ordered=False),
        Pair("object", "object", {"a": 1}, {"b": 2}, ordered=False),
    ],
}  # fmt: skip
PAIRS |= {
    "composite-local of json": PAIRS["json"],
    "composite-local of nvfix": PAIRS["nvfix"],
    "composite-local of msgpack": PAIRS["msgpack"],
}


def _logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


AVRO = [
    *(Pair(p.name, "text", p.low, p.high, p.total, avro="string") for p in TEXTS),
    Pair("int", "number", 5, 7, 12, avro="int"),
    Pair("the largest int", "number", 5, 2**31 - 1, TOO_LARGE, avro="int"),
    Pair("long", "number", 2**53 + 1, 2**53 + 3, 2**54 + 4, avro="long"),
    Pair("the largest long", "number", 2**62, 2**62 + 1, TOO_LARGE, avro="long"),
    *(Pair(p.name, "number", p.low, p.high, p.total, p.ordered, "double") for p in DOUBLES if p.low != 5),
    Pair("float", "number", 0.5, 0.25 + 0.5, 1.25, avro="float"),
    Pair("the largest float", "number", 2.0**127, 1.5 * 2.0**127, TOO_LARGE, avro="float"),
    Pair("long or double", "number", 5, 7.25, 12.25, avro=["long", "double"]),
    Pair("decimal", "number", Decimal("0.1234567890123456789"), Decimal("1.1234567890123456789"),
         Decimal("1.2469135780246913578"), avro=_logical("bytes", "decimal", precision=38, scale=19)),
    Pair("decimal of fixed size", "number", Decimal("9.5"), Decimal("10.1"), Decimal("19.6"),
         avro={"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 1}),
    Pair("the largest decimal", "number", Decimal("98.7"), Decimal("98.8"), TOO_LARGE,
         avro=_logical("bytes", "decimal", precision=3, scale=1)),
    Pair("timestamp of milliseconds", "time", instant("2024-01-01T00:00:00"), instant("2024-01-01T00:00:00.500"),
         avro=_logical("long", "timestamp-millis")),
    Pair("timestamp of microseconds", "time", instant("2024-01-01T00:00:00"), instant("2024-01-01T00:00:00.000001"),
         avro=_logical("long", "timestamp-micros")),
    Pair("local timestamp", "time", dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 1),  # noqa: DTZ001
         avro=_logical("long", "local-timestamp-micros")),
    Pair("date", "time", dt.date(2024, 1, 31), dt.date(2024, 2, 1), avro=_logical("int", "date")),
    Pair("time of day", "time", dt.time(9), dt.time(10, 0, 0, 1), avro=_logical("long", "time-micros")),
    Pair("UUID", "other", UUID(int=9), UUID(int=10), avro=_logical("string", "uuid")),
    Pair("enum", "text", "A", "B", avro={"type": "enum", "name": "E", "symbols": ["B", "A"]}),
    Pair("bytes", "bytes", b"\x01", b"\x01\x00", avro="bytes"),
    Pair("boolean", "boolean", False, True, ordered=False, avro="boolean"),
    Pair("array", "array", ["x", "y"], ["y", "z"], ordered=False, avro={"type": "array", "items": "string"}),
    Pair("map", "object", {"a": 1}, {"b": 2}, ordered=False, avro={"type": "map", "values": "int"}),
]  # fmt: skip
