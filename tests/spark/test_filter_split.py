from __future__ import annotations

import random

import pytest

from processor.errors import ConfigurationError, FilterError
from processor.filter.parse import parse

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql.types import DateType, FloatType, LongType, MapType, StringType, StructField, StructType

from spark_integration.filter import filter_column, split_filter
from spark_integration.filter.spelling import spelled
from tests.spark.filter_cases import SCHEMA, filter_text

STRUCT = StructType(
    [
        *SCHEMA.fields,
        StructField("f", FloatType()),
        StructField("day", DateType()),
        StructField("m", MapType(StringType(), LongType())),
        StructField("low", StringType("UTF8_LCASE")),
        StructField("x", LongType()),
        StructField("X", LongType()),
    ]
)


@pytest.mark.parametrize(
    "text",
    [
        "/id = 1",
        "1.5 < /qty",
        "/px BETWEEN 0.1 AND 10",
        "/amount IN (1, '2', 10.25)",
        "/name >= 'a'",
        "/'a b' LIKE r'^\\w+\\s.'",
        "/to/zip NOT BEGINS WITH ('a', 'b')",
        "/tags = 'a'",
        "/legs[1]/ccy != 'EUR'",
        "/legs/notes ENDS WITH ('x')",
        "/to IS NULL",
        "/open",
        "/qty * 2 - /id > 10.5",
        "/id < /to/n",
        "/name = /to/zip",
        "NOT (/open OR /id IS NULL)",
        "/name = NULL",
    ],
)
def test_goes_to_the_jvm(text) -> None:
    """What a typed column says exactly as the record does is left to Spark."""
    assert split_filter(text, STRUCT).rest == ()


@pytest.mark.parametrize(
    "text",
    [
        "/name = 1",
        "/name < /id",
        "/nowhere = 1",
        "/ID = 1",
        "/name/x IS NULL",
        "/legs/n[0] = 1",
        "/px = 0.12345678901234567890123456789012345678901",
        "/f = 1",
        "/day > '2024-01-01'",
        "/m/a = 1",
        "/low = 'a'",
        "/x = 1",
        "LENGTH(/name) = 1",
        "UNIX_TIMESTAMP() > 0",
        "/qty / 2 = 1",
        "/id * /id * /id > 1",
        "/px + 1 > 2",
        "/name LIKE '(a+)+b'",
        "/name LIKE '.*a.*b'",
        "/name LIKE '(?i)a'",
        "(/id = 1) = TRUE",
        "/name",
        "/id = 1 OR LENGTH(/name) = 1",
    ],
)
def test_stays_with_the_processor(text) -> None:
    """What Spark SQL may have otherwise, or what the schema does not tell, is left to the processor."""
    assert split_filter(text, STRUCT).pushed == ()


def test_no_schema_leaves_all_to_the_processor() -> None:
    """Operand by operand."""
    assert split_filter("/a = 1 AND /b = 2", None) == ((), ("/a = 1", "/b = 2"))


def test_a_part_is_shown_as_a_filter(random_seed) -> None:
    """The text of a part means what the part means."""
    rng = random.Random(random_seed)
    for _ in range(500):
        tree = parse(filter_text(rng))
        assert parse(spelled(tree)) == tree


@pytest.mark.parametrize("name", ["SOW_KEY", "LAST_UPDATED", "MESSAGE_SIZE", "TOPIC_NAME", "CORRELATION_ID"])
def test_what_is_known_besides_the_record_is_refused(name) -> None:
    """A function that asks for the Kafka record is named, with what to do instead."""
    with pytest.raises(ConfigurationError, match=rf"{name}\(\) cannot be asked here: .*sow_key and timestamp"):
        split_filter(f"/a = 1 AND NOT (LENGTH({name}()) > 1)", None)


def test_what_is_no_filter_is_refused_with_its_place() -> None:
    """As everywhere."""
    with pytest.raises(FilterError, match="line 1, column 6"):
        filter_column("/a = ", None, record=None, value=None)
