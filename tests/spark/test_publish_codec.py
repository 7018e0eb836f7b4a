from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sowstream[avro]'")

from spark_integration.foundation.settings import topic_settings
from tests.spark.published import sent

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}]},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "to", "type": {"type": "record", "name": "To", "fields": [{"name": "zip", "type": ["null", "string"]}]}},
]
ROW = "id LONG, note STRING, price DECIMAL(20,4), at TIMESTAMP, to STRUCT<zip: STRING>, m ARRAY<STRING>"


@pytest.fixture
def avro(tmp_path):
    """Settings of a topic with a schema file."""
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps({"type": "record", "name": "Order", "fields": FIELDS}))
    return {"message_type": "avro", "schema": str(schema)}


def test_avro_deltas_carry_the_fields_of_the_mask(spark, avro) -> None:
    """An Avro delta has the fields of its mask, nulls included, with exact decimals and times, for a worker."""
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
    price = Decimal("1234567890123456.7891")
    rows = spark.createDataFrame(
        [(1, None, price, None, None, ["note", "price"]), (2, "ø", None, at, ("9",), ["/at", "/to/zip"])], ROW
    )
    codec = topic_settings("orders", avro).codec()
    found = {}
    for key, value, headers in sent(rows, mask="m", config=avro):
        found[key] = codec.decode_command(value, [(n, text.encode()) for n, text in headers.items()], is_delta=True)
    assert found == {"1": {"id": 1, "note": None, "price": price}, "2": {"id": 2, "at": at, "to": {"zip": "9"}}}


def test_row_that_the_type_cannot_write_ends_the_query(spark, avro) -> None:
    """A row that does not fit the topic's schema fails the query with a message, before anything is written."""
    rows = spark.createDataFrame([(1, "x", 5)], "id LONG, note STRING, size INT")
    with pytest.raises(ConfigurationError, match=r"a row is no message of type avro: .*'size'; nothing was written"):
        sent(rows, columns=["size"], config=avro)


def test_other_types_and_deletes(spark) -> None:
    """Any message type is encoded by its codec, and a deleted row has no message."""
    rows = spark.createDataFrame([(1, "x", True), (2, "y", False)], "id LONG, note STRING, gone BOOLEAN")
    config = {"message_type": "nvfix", "separator": "|"}
    found = {key: value for key, value, _ in sent(rows, columns=["note"], deleted="gone", config=config)}
    assert found == {"1": None, "2": b"id=2|note=y|"}


def test_explicit_key_stands_beside_the_message(spark) -> None:
    """For a topic with explicit keys, the key columns are in no message."""
    rows = spark.createDataFrame([(1, "x")], "id LONG, note STRING")
    assert [(k, v) for k, v, _ in sent(rows, columns=["note"], config={"key": "explicit"})] == [("1", b'{"note":"x"}')]
