"""Rows that do not fit their topic."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from spark_integration.foundation.arrow_records import headers_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.pipeline.ingesting.row_check import RowCheck


def _checked(texts, *, topic=None, nulls="ignore", key=("/id",), problems=None, size=100, taken=1 << 24):
    check = RowCheck(topic_settings("orders", topic or {}), key, "delta_publish", nulls, "misfit", taken)
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


def test_a_message_counts_with_its_key_and_its_headers() -> None:
    """A row that Kafka would refuse with all that belongs to it is rejected, and no longer stops the job."""
    texts = [
        json.dumps({"id": "k" * 3_000, "x": "y" * 3_000}).encode(),
        json.dumps({"id": 1, "n" * 7_000: None}).encode(),
    ]
    assert [row["reason"] for row in _checked(texts, nulls="remove")] == [None, None]
    rows = _checked(texts, nulls="remove", taken=9_000)
    assert [row["reason"] for row in rows] == ["too_large", "too_large"]
    assert rows[0]["detail"] == "the message has 9039 bytes with its key and headers; Kafka takes 9000"


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
