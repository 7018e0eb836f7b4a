"""Spark reads headers by the rules of `processor.wire.headers`, as columns and record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from processor.wire import columns
from processor.wire.headers import read_kind, read_number
from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.read.metadata_columns import header_kind, header_number
from tests.wire.test_readers_read_writers import DAMAGED, KINDS

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


NUMBERS = (*DAMAGED, b"0", b"1", b"4096", b"007", b"9223372036854775807", b"999999999999999999")
KIND_TEXTS = (*(kind.encode() for kind in KINDS), b"", b"Insert", b"delete ", b"delete\n", None)


def read(spark: SparkSession, name: str, values: tuple[bytes | None, ...], column: Column) -> list[object]:
    """Return a column of one record for each value of a header."""
    rows = [(number, [("trace", b"t"), (name, value)]) for number, value in enumerate(values)]
    records = spark.createDataFrame(rows, f"number INT, headers {HEADERS_DDL}")
    return [row["read"] for row in records.select("number", column.alias("read")).orderBy("number").collect()]


def test_a_column_has_the_numbers_that_all_readers_read(spark: SparkSession):
    """Good and damaged versions are the same number, or none, in a column and for every reader of records."""
    found = read(spark, columns.VERSION, NUMBERS, header_number(columns.VERSION))
    assert dict(zip(NUMBERS, found, strict=True)) == {value: read_number(value) for value in NUMBERS}


def test_a_column_has_the_kinds_that_all_readers_read(spark: SparkSession):
    """A kind that is none of the four words is null, for Spark's streams take it for an update or a delete."""
    found = read(spark, columns.KIND, KIND_TEXTS, F.coalesce(header_kind(), F.lit(None)))
    assert dict(zip(KIND_TEXTS, found, strict=True)) == {value: read_kind(value) for value in KIND_TEXTS}
