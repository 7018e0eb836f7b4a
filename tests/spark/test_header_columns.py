"""Spark reads headers by the rules of `processor.wire.headers`, and SQL of hostile names and texts is what it says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from processor.errors import ConfigurationError
from processor.wire import columns
from processor.wire.headers import read_kind, read_number
from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.foundation.settings import topic_settings
from spark_integration.foundation.sql import literal
from spark_integration.read.metadata_columns import described, header_kind, header_number
from spark_integration.read.topic_reader import Layout, TopicReader
from tests.wire.test_readers_read_writers import DAMAGED, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from spark_integration.read.misfit import OnMisfit


NUMBERS = (*DAMAGED, b"0", b"1", b"4096", b"007", b"9223372036854775807", b"999999999999999999")
KIND_TEXTS = (*(kind.encode() for kind in KINDS), b"", b"Insert", b"delete ", b"delete\n", None)


def read(spark: SparkSession, name: str, values: tuple[bytes | None, ...], column: str) -> list[object]:
    """Return a column of one record for each value of a header."""
    rows = [(number, [("trace", b"t"), (name, value)]) for number, value in enumerate(values)]
    records = spark.createDataFrame(rows, f"number INT, headers {HEADERS_DDL}")
    return [row["read"] for row in records.selectExpr("number", f"{column} AS read").orderBy("number").collect()]


def test_a_column_has_the_numbers_that_all_readers_read(spark: SparkSession):
    """Good and damaged versions are the same number, or none, in a column and for every reader of records."""
    found = read(spark, columns.VERSION, NUMBERS, header_number(columns.VERSION))
    assert dict(zip(NUMBERS, found, strict=True)) == {value: read_number(value) for value in NUMBERS}


def test_a_column_has_the_kinds_that_all_readers_read(spark: SparkSession):
    """A kind that is none of the four words is null, for Spark's streams take it for an update or a delete."""
    found = read(spark, columns.KIND, KIND_TEXTS, header_kind())
    assert dict(zip(KIND_TEXTS, found, strict=True)) == {value: read_kind(value) for value in KIND_TEXTS}


HOSTILE = (
    "it's",
    'a "b"',
    "a\\b",
    "a\\'b",
    "a`b",
    "``",
    "a.b",
    "a\nb",
    "\0",
    "",
    "--",
    "/* */",
    "r'x'",
    "\u20ac\U0001f40d",
)
"""Texts with characters that mean something to a parser of SQL."""
REFERENCE = "${spark.sql.shuffle.partitions}"
PARSERS: Final = (
    {},
    {"spark.sql.parser.escapedStringLiterals": "true"},
    {"spark.sql.ansi.enabled": "true", "spark.sql.ansi.doubleQuotedIdentifiers": "true"},
)


@pytest.fixture(params=PARSERS, ids=["default", "escaped", "ansi"])
def parser(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session whose parser has other rules."""
    for name, value in request.param.items():
        spark.conf.set(name, value)
    yield spark
    for name in request.param:
        spark.conf.unset(name)


def test_a_literal_is_the_text_for_every_parser(parser: SparkSession):
    """A text in SQL is itself under each rule for backslashes and quotes, also where Spark would put a setting."""
    texts = (*HOSTILE, REFERENCE, f"'{REFERENCE}")
    [row] = parser.range(1).selectExpr(*(f"{literal(text)} AS c{i}" for i, text in enumerate(texts))).collect()
    assert tuple(row) == texts


def test_fields_with_hostile_names_are_read(parser: SparkSession):
    """A field of any name is read, a misfit of it is reported under that name, and no name is taken for SQL."""
    names = [name for name in HOSTILE if name not in ("", "``")]
    schema = StructType([StructField(name, StringType()) for name in names] + [StructField("it`s 'n'", DoubleType())])
    values = [*(f"{{ }} {{ {name}" for name in names), 2.5]
    record = dict(zip(schema.names, values, strict=True))
    rows = _rows(parser, schema, "fail", record)
    assert rows.schema.names == schema.names
    assert tuple(rows.first() or ()) == tuple(values)
    [misfit] = _rows(parser, schema, "column", record | {"it`s 'n'": "x"}).select("_sow.misfit.*").collect()
    assert misfit["reason"] == "does not fit the schema: /it`s 'n' is not double"
    assert misfit["topic"] == "it's.sow"


def test_a_name_that_spark_would_replace_is_refused(spark: SparkSession):
    """A field whose name is a reference to a setting is an error, and is read where Spark replaces none."""
    schema = StructType([StructField(REFERENCE, LongType())])
    with pytest.raises(ConfigurationError, match=r"a name with \$\{spark\.sql\.shuffle\.partitions\}"):
        _rows(spark, schema, "fail", {REFERENCE: 7})
    spark.conf.set("spark.sql.variable.substitute", "false")
    try:
        assert tuple(_rows(spark, schema, "fail", {REFERENCE: 7}).first() or ()) == (7,)
    finally:
        spark.conf.unset("spark.sql.variable.substitute")


def _rows(spark: SparkSession, schema: StructType, on_misfit: OnMisfit, record: dict[str, object]) -> DataFrame:
    """The row of one record of JSON; without metadata unless misfits are shown."""
    columns = f"key BINARY, value BINARY, headers {HEADERS_DDL}, timestamp TIMESTAMP, partition INT, offset LONG"
    value = json.dumps(record, ensure_ascii=False).encode()
    records = spark.createDataFrame([(b"k", value, None, datetime.now(UTC), 0, 1)], columns)
    layout = Layout("none" if on_misfit == "fail" else "struct", on_misfit)
    reader = TopicReader.of(topic_settings("orders", None), schema, described(), layout, StructType)
    return reader.rows(records, "it's.sow")
