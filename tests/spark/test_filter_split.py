from __future__ import annotations

import random

import pytest

from processor.errors import ConfigurationError, FilterError
from processor.filter.parse import parse

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql.types import DateType, FloatType, LongType, MapType, StringType, StructField, StructType

from spark_integration.filter import filter_column, split_filter
from spark_integration.filter.column import spelled
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
    """Spark evaluates a part of a filter where a typed column has exactly the values of the record."""
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
    """The processor evaluates a part of a filter where Spark SQL may differ or the schema is incomplete."""
    assert split_filter(text, STRUCT).pushed == ()


def test_no_schema_leaves_all_to_the_processor() -> None:
    """Without a schema, the processor evaluates every operand of a filter."""
    assert split_filter("/a = 1 AND /b = 2", None) == ((), ("/a = 1", "/b = 2"))


def test_a_part_is_shown_as_a_filter(random_seed) -> None:
    """The text of a part is a filter with the same meaning as the part."""
    rng = random.Random(random_seed)
    for _ in range(500):
        tree = parse(filter_text(rng))
        assert parse(spelled(tree)) == tree


@pytest.mark.parametrize("name", ["SOW_KEY", "LAST_UPDATED", "MESSAGE_SIZE", "TOPIC_NAME", "CORRELATION_ID"])
def test_functions_of_metadata_are_refused(name) -> None:
    """A function of a record's metadata is refused with its name and an alternative."""
    with pytest.raises(ConfigurationError, match=rf"{name}\(\) cannot be asked here: .*sow_key and timestamp"):
        split_filter(f"/a = 1 AND NOT (LENGTH({name}()) > 1)", None)


def test_an_invalid_filter_is_refused_with_its_place() -> None:
    """An invalid filter is refused, and the error shows the place of the mistake."""
    with pytest.raises(FilterError, match="line 1, column 6"):
        filter_column("/a = ", None, record=None, value=None)
