"""Decimals of JSON rows reach their columns with every digit, or their row is rejected."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType

from spark_integration.pipeline.ingesting.row_check import PROBLEM, JsonDecimals, decimals_of

PRICE = DecimalType(9, 2)
SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("px", PRICE)
    .add("legs", ArrayType(StructType().add("px", PRICE).add("name", StringType())))
    .add("by_day", MapType(StringType(), PRICE))
)


def problem(row: str) -> str | None:
    """The problem of a row, after the way to an executor."""
    check = pickle.loads(pickle.dumps(JsonDecimals(decimals_of(SCHEMA))))
    columns = {"value": [row.encode()], "file": ["f"], "line": [1], "at": [0], "partition": [0]}
    [batch] = check([pa.RecordBatch.from_pydict(columns)])
    [text] = batch.column(PROBLEM).to_pylist()
    return text


@pytest.mark.parametrize("number", ["1.25", "1.250", "125e-2", "12.5E-1", "-0.5", "7", '"1.25"', "null", "1e3", "NaN"])
def test_a_number_that_its_column_holds_has_no_problem(number: str) -> None:
    """A number with as many decimals as the column, in any spelling, is left to Spark."""
    assert problem(f'{{"id": 7, "px": {number}}}') is None


@pytest.mark.parametrize("number", ["1.255", "1e-3", "125.5e-2", '"1.255"', "0.0000000000000000000000000000001"])
def test_a_number_with_more_decimals_is_rejected(number: str) -> None:
    """A number that Spark would round is a problem that names the column and the number."""
    text = problem(f'{{"id": 7, "px": {number}}}')
    assert text is not None
    assert text.startswith("px is ")
    assert text.endswith("which has more than 2 decimals")


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ('{"legs": [{"px": 1.5}, {"px": 1.005}]}', "legs.px"),
        ('{"by_day": {"mon": 1.5, "tue": 1.005}}', "by_day"),
        ('\ufeff{"px": 1.005}', "px"),
    ],
)
def test_decimals_are_compared_at_any_depth(row: str, name: str) -> None:
    """The fields of structs in arrays and the values of maps are compared, also behind a byte order mark."""
    assert str(problem(row)).startswith(f"{name} is ")


def test_a_text_with_a_comma_is_rejected() -> None:
    """Spark reads 1,5 as 15 unless a locale is given."""
    assert str(problem('{"px": "1,5"}')).startswith("px is '1,5', which is no number")


@pytest.mark.parametrize("row", ["{'px': 1.005}", '{"px": 1.005} /* per lot */', "{px: 1.005}", "{", "[" * 100_000])
def test_a_row_that_cannot_be_compared_is_rejected(row: str) -> None:
    """A row in a spelling that only Spark reads is a problem, and not a row that may be rounded."""
    assert "cannot be compared" in str(problem(row))


def test_a_schema_without_decimals_is_not_compared() -> None:
    """Nothing is compared, and no row is read twice, where no column is a decimal."""
    assert decimals_of(StructType().add("id", LongType()).add("legs", ArrayType(StringType()))) is None
