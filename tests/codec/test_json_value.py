"""Values of every message type are displayed as JSON."""

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import bson
import msgpack
import pytest
from hypothesis import given, settings

from processor.client import Message
from processor.codec.json_value import to_json_line
from tests.codec.specimens import BSON, JSON, MSGPACK, nested, orders

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (b"\xff\0", '"/wA="'),
        (bson.Binary(b"\xff", 128), '"/w=="'),
        (WHEN, '"2026-01-02T03:04:05.678000+00:00"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (msgpack.Timestamp(0, 5), '"1970-01-01T00:00:00.000000005Z"'),
        (msgpack.Timestamp(1), '"1970-01-01T00:00:01Z"'),
        (msgpack.Timestamp(2**62), '"Timestamp(seconds=4611686018427387904, nanoseconds=0)"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (bson.Decimal128("1.00"), '"1.00"'),
        (bson.ObjectId(b"0" * 12), '"303030303030303030303030"'),
        (bson.Int64(7), "7"),
        (Decimal("18446744073709551616.10"), "18446744073709551616.10"),
        (Decimal("NaN"), '"NaN"'),
        (bson.MinKey(), '"MinKey()"'),
        (float("nan"), "null"),
    ],
    ids=repr,
)
def test_a_value_without_a_json_type_is_text(value, line):
    """Values without a JSON type are displayed as text: base64, ISO 8601, identifiers; numbers keep all digits."""
    assert to_json_line(value) == line
    assert Message("sow", "t", "k", {"a": [value]}).to_json().endswith('"data":{"a":[' + line + "]}}")
    assert Message("sow", "t", "k", {"a": value}).data_json() == '{"a":' + line + "}"


@settings(max_examples=200, deadline=None, print_blob=True)
@given(nested(JSON | MSGPACK | BSON) | orders())
def test_every_value_is_displayed(value):
    """Every value is displayed as one line of valid JSON, never as an error."""
    line = to_json_line(value)
    assert "\n" not in line
    json.loads(line)
