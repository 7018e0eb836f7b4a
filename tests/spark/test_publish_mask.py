"""The mask of a published delta, in JSON and Avro: which columns are fields of it."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration.foundation.settings import topic_settings
from spark_integration.read.decode import changed
from tests.spark.published import bodies, sent

pytestmark = [pytest.mark.spark, pytest.mark.long]

SCHEMA = """
    id BIGINT, `na.me` STRING, `s/l~a"sh` DOUBLE, tags ARRAY<STRUCT<t: INT>>, open BOOLEAN, big DECIMAL(30,4),
    `to` STRUCT<zip: STRING, geo: STRUCT<lat: DOUBLE, `l/on`: DOUBLE>, notes: ARRAY<STRING>>,
    attributes MAP<STRING, BIGINT>
"""


def _delta(rng: random.Random, number: int) -> dict:
    """A delta with any of the fields, each with a value or null."""
    text = rng.choice(["", "ø €😀", 'a "b" \\ \n', "null", "/x~"])
    geo = {"lat": rng.choice([None, 1.5]), "l/on": rng.choice([None, -2.25])}
    to = {"zip": rng.choice([None, text]), "geo": _part(rng, geo), "notes": rng.choice([None, [], [text, None]])}
    attributes = {rng.choice(["a", "b/c", "d~e", text]): rng.choice([None, 0, 2**53 + 1]) for _ in range(3)}
    fields = {
        "na.me": rng.choice([None, text]),
        's/l~a"sh': rng.choice([None, 0.1, -1e-7]),
        "tags": rng.choice([None, [], [{"t": 1}, {"t": None}]]),
        "open": rng.choice([None, True]),
        "big": None,
        "to": _part(rng, to),
        "attributes": _part(rng, attributes),
    }
    return {"id": number, **_some(rng, fields)}


def _some(rng: random.Random, fields: dict) -> dict:
    return {name: value for name, value in fields.items() if value != {} and rng.random() < 0.5}


def _part(rng: random.Random, fields: dict) -> dict | None:
    return None if rng.random() < 0.1 else _some(rng, fields)


def test_a_delta_published_with_its_mask_is_the_same_delta(spark, random_seed) -> None:
    """Deltas that are read into typed columns and published with their own paths as mask are the same deltas again."""
    rng = random.Random(random_seed)
    deltas = [_delta(rng, number) for number in range(300)]
    texts = spark.createDataFrame([(json.dumps(delta),) for delta in deltas], "text STRING")
    rows = texts.select(F.from_json("text", SCHEMA, {"mode": "FAILFAST"}).alias("r"), changed(F.col("text")).alias("m"))
    # A null in the place of an object is a leaf, and Spark has all its fields for it: the paths say which it is.
    found = bodies(rows.select("r.*", "m"), mask="m")
    assert {body["id"]: body for body in found} == {delta["id"]: delta for delta in deltas}


NAMED = [
    ([], {}),
    (["id", "/id"], {}),
    (["na.me"], {"na.me": "n"}),
    (["/na.me", "na.me"], {"na.me": "n"}),
    (['s/l~a"sh'], {'s/l~a"sh': None}),
    (["/to"], {"to": {"zip": "1", "geo": None, "notes": None}}),
    (["/to/geo"], {"to": {"geo": None}}),
    (["/to/geo/lat", "/to/zip"], {"to": {"zip": "1", "geo": {"lat": None}}}),
    (["/attributes/b~1c"], {"attributes": {"b/c": 2}}),
    (["attributes"], {"attributes": {"a": None, "b/c": 2}}),
]
"""A mask, and the fields of its delta besides the key."""


def test_names_and_pointers(spark) -> None:
    """A mask has names of columns, or pointers to them and into them; the key is always published, first and once."""
    found = sent(_rows(spark, [mask for mask, _ in NAMED]), mask="m")
    expected = {str(number): {"id": number, **delta} for number, (_, delta) in enumerate(NAMED)}
    assert {key: json.loads(value) for key, value, _ in found} == expected
    assert all(value.startswith(b'{"id":%s' % key.encode()) and value.count(b'"id"') == 1 for key, value, _ in found)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (["/to/zap"], r'names what the DataFrame has no column for: \["/to/zap"\]; add the columns'),
        (["nome", "open"], r'no column for: \["/nome"\]'),
        (["/attributes/z"], r'no column for: \["/attributes/z"\]'),
        (["/tags/0"], r'no column for: \["/tags/0"\]'),
        ([None], r"no column for: \[null\]"),
        (None, "the mask of a row is null; give it an empty array where nothing changes$"),
    ],
)
def test_an_invalid_mask_ends_the_query(spark, mask, said) -> None:
    """A name in a mask without a column fails the query, and the error has the name."""
    with pytest.raises(ConfigurationError, match=said):
        sent(_rows(spark, [mask]), mask="m")


def _rows(spark, masks):
    """A row for each mask, numbered by its key."""
    fields = {"na.me": "n", "to": {"zip": "1"}, "attributes": {"a": None, "b/c": 2}}
    texts = [(json.dumps({"id": number, **fields}), mask) for number, mask in enumerate(masks)]
    rows = spark.createDataFrame(texts, "text STRING, m ARRAY<STRING>")
    return rows.select(F.from_json("text", SCHEMA).alias("r"), "m").select("r.*", "m")


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
