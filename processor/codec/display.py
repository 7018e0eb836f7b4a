"""Any parsed value as a line of JSON, for people and tools: values without a type in JSON are shown as text."""

from __future__ import annotations

from base64 import b64encode
from decimal import Decimal

import orjson

from processor.record import Value


def to_json_line(value: Value) -> str:
    """One line of JSON.

    Numbers keep every digit. Bytes are Base64, dates and timestamps ISO 8601 (the latter in UTC), a UUID, a Decimal128
    and an ObjectId their text; anything else is its text in Python.
    """
    return orjson.dumps(value, default=_shown).decode()


def _shown(value: Value) -> Value:
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value)) if value.is_finite() else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if type(value).__name__ == "Timestamp" and hasattr(value, "to_datetime"):  # MessagePack's: has nanoseconds.
        return _iso(value)
    return str(value)


def _iso(timestamp: Value) -> str:
    """MessagePack's timestamp, whose year may be beyond Python's."""
    try:
        whole = type(timestamp)(timestamp.seconds).to_datetime().strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError):
        return str(timestamp)
    return f"{whole}.{timestamp.nanoseconds:09d}Z" if timestamp.nanoseconds else f"{whole}Z"
