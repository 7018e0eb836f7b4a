"""A message of each message type, as its codec of this checkout writes it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import bson

from processor.codec import CodecOptions
from processor.codec.avro import AvroCodec
from processor.config import SchemaConfig
from processor.record import Record
from tests.codec.specimens import codec_of

if TYPE_CHECKING:
    from processor.codec import Codec

_TIME: Final = datetime(2026, 11, 26, 7, 0, 0, 123000, tzinfo=UTC)
_AVRO_SCHEMA: Final = SchemaConfig(text=json.dumps({
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "customer", "type": "string"},
        {"name": "qty", "type": ["null", "long"]},
        {"name": "px", "type": {"type": "record", "name": "Price", "fields": [{"name": "bid", "type": "double"}]}},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}}, {"name": "raw", "type": "bytes"},
    ],
}))  # fmt: skip
_OF_JSON: Final[dict[str, Any]] = {
    "id": 7, "customer": "é\u2028", "qty": 3, "px": {"bid": 1.5, "ask": -0.0}, "tags": [1, {"a": None}, True, ""],
    "long": 18446744073709551616,
}  # fmt: skip
MESSAGES: Final[dict[str, Any]] = {
    "json": _OF_JSON,
    "json-schema": _OF_JSON,
    "msgpack": {"id": 7, "qty": 2**63, "px": {"bid": 1.5}, "raw": b"\xff", "tags": [None, True]},
    "bson": {"id": 7, "at": _TIME, "px": bson.Decimal128("1.50"), "n": bson.Int64(3), "tags": [None, True]},
    "nvfix": {"id": "7", "qty": "3", "tags": ["a", "b"]},
    "fix": {"11": "7", "38": "3"},
    "xml": {"order": {"@id": "7", "qty": "3", "leg": ["a", "b"]}},
    "composite-local": {"0": {"id": 7}, "1": {"qty": "3"}, "2": b"\xff"},
    "protobuf": {"id": 7, "price": 1.5, "tags": ["a"], "note": ""},
    "binary": b"\xff\x00",
    "avro": {"id": 7, "customer": "é", "qty": None, "px": {"bid": 1.5}, "side": "BUY", "tags": ["a"], "raw": b"\xff"},
}
"""The value of each message type."""


def messages() -> list[Record]:
    """Return a record for each message type; its key is the type's name."""
    return [
        Record(name.encode(), _codec(name).encode(value), None, at, 0)
        for at, (name, value) in enumerate(MESSAGES.items())
    ]


def decoded(record: Record) -> Any:
    """Return the value of a golden message."""
    assert record.key is not None
    assert record.value is not None
    return _codec(record.key.decode()).decode(record.value)


def _codec(name: str) -> Codec:
    if name == "avro":
        return AvroCodec(CodecOptions(topic="orders", schema=_AVRO_SCHEMA))
    return codec_of(name)
