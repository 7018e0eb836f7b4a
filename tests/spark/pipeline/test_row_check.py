"""Rows that do not fit their topic: by their values, and by decimals in JSON."""

from __future__ import annotations

import json
import pickle

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType

from spark_integration.foundation.arrow_records import headers_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.pipeline.ingesting.row_check import PROBLEM, JsonDecimals, RowCheck, decimals_of


def _checked(texts, *, topic=None, nulls="ignore", key=("/id",), problems=None, size=100):
    check = RowCheck(topic_settings("orders", topic or {}), key, "delta_publish", nulls, "misfit")
    rows = [(text, text, None if problems is None else problems[n], "a", n + 1) for n, text in enumerate(texts)]
    batches = []
    for begin in range(0, len(rows), size):
        names = ("text", "raw", "problem", "file", "line")
        types = (pa.binary(), pa.binary(), pa.string(), pa.string(), pa.int64())
        part = list(zip(*rows[begin : begin + size], strict=True))
        arrays = {name: pa.array(column, kind) for name, column, kind in zip(names, part, types, strict=True)}
        arrays["detail"] = pa.nulls(len(part[0]), pa.string())
        arrays["at"] = pa.nulls(len(part[0]), pa.int64())
        arrays["partition"] = pa.nulls(len(part[0]), pa.int32())
        batches.append(pa.RecordBatch.from_pydict(arrays))
    found = []
    for batch in check(iter(batches)):
        named = headers_of(batch.column("headers"))
        rows = batch.drop_columns("headers").to_pylist()
        found += [row | {"headers": dict(headers or [])} for row, headers in zip(rows, named, strict=True)]
    return found


def test_a_message_is_sent_as_it_is() -> None:
    """A JSON text that needs no change keeps its bytes: spaces, digits and duplicate fields are not touched."""
    text = b'{"id": 7,  "qty": 1.50}'
    (row,) = _checked([text])
    assert (row["key"], row["value"], row["headers"]) == (b"7", text, {"command": b"delta_publish"})
    assert (row["reason"], row["raw"]) == (None, None)


@pytest.mark.parametrize(
    ("nulls", "policy", "value", "remove"),
    [
        ("ignore", "ignore", {"id": 1, "a": None, "b": {"c": None, "d": 1}}, None),
        ("ignore", "set", {"id": 1, "b": {"d": 1}}, None),
        ("remove", "ignore", {"id": 1, "b": {"d": 1}}, ["/a", "/b/c"]),
        ("set", "set", {"id": 1, "a": None, "b": {"c": None, "d": 1}}, None),
    ],
)
def test_the_meaning_of_a_null(nulls, policy, value, remove) -> None:
    """A null is left to the topic where that has the same meaning, else left out, or named in the header `remove`."""
    text = b'{"id":1,"a":null,"b":{"c":null,"d":1}}'
    (row,) = _checked([text], nulls=nulls, topic={"null_policy": policy})
    assert json.loads(row["value"]) == value
    assert json.loads(row["headers"].get("remove", b"null")) == remove


def test_rows_that_do_not_fit_keep_their_place_and_text() -> None:
    """A row is rejected with the reason that a worker would have, and the others go on."""
    big = json.dumps({"id": 1, "x": "y" * 200}).encode()
    texts = [b"{", b"[1]", None, b'{"no":1}', b'{"id":{}}', big, b'{"id":2}', b'{"id":3}']
    problems = [None] * 7 + ["misfit"]
    rows = _checked(texts, topic={"max_record_bytes": 100}, problems=problems, size=3)
    assert [(row["line"], row["reason"]) for row in rows] == [
        (1, "undecodable"),
        (2, "not_an_object"),
        (3, "undecodable"),
        (4, "missing_key"),
        (5, "missing_key"),
        (6, "too_large"),
        (7, None),
        (8, "misfit"),
    ]
    assert [row["raw"] for row in rows] == [*texts[:6], None, texts[7]]


def test_an_explicit_key_is_made_of_the_fields_that_are_named() -> None:
    """Several fields make the text that workers compute from the same values."""
    (row,) = _checked([b'{"a":"x","b":2}'], topic={"key": "explicit"}, key=("/a", "/b"))
    assert row["key"] == b'["x","2"]'


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
