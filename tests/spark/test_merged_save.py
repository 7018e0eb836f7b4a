"""A batch merge reads files of lines and lists of headers, and saves its result."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from processor.errors import ConfigurationError
from tests.spark.merge_histories import NAME, NOW_MS

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from spark_integration.merge.batch.base_state import as_base
from spark_integration.merge.batch.files import history_of
from spark_integration.merge.batch.handover import _side
from spark_integration.merge.batch.history import as_records
from spark_integration.merge.batch.merge_batch import merge_batch
from spark_integration.merge.batch.result import load_merged
from spark_integration.merge.streaming.chunks import RECORD_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DDL = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int, offset bigint, "
    "timestamp timestamp"
)


def _contents(merged):
    """The records, tombstones, dead letters and marks in any order, and the deltas of each key in theirs."""
    frames = [merged.records, merged.tombstones, merged.rejected]
    deltas: dict[bytes, list] = {}
    for row in merged.deltas.toLocalIterator():
        deltas.setdefault(bytes(row.key), []).append((row.value and bytes(row.value), row.headers))
    return [sorted(map(repr, frame.collect())) for frame in frames], deltas, sorted(map(repr, merged.marks.collect()))


@pytest.mark.long
def test_a_saved_result_is_the_one_that_was_merged(spark, tmp_path) -> None:
    """A result that was saved and loaded has the same rows, order of deltas, marks and counts."""
    time = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)
    given = [
        (
            b"%d" % (n % 50),
            b"rubbish" if n % 97 == 0 else None if n % 211 == 0 else b'{"id":%d,"n":%d}' % (n % 50, n),
            [("client", b"ann"), ("sequence", b"%d" % n)],
            0,
            n,
            time,
        )
        for n in range(2_000)
    ]
    target = str(tmp_path / "merged")
    with merge_batch(spark, NAME, history=spark.createDataFrame(given, DDL), deltas=True) as merged:
        saved = merged.save(target)
        assert _contents(saved) == _contents(merged)
        with pytest.raises(AnalysisException, match="already exists"):
            merged.save(target)
    loaded = load_merged(spark, target, NAME)
    for result in (saved, loaded):
        assert (result.counts, result.rejected_for, result.as_of_ms) == (
            merged.counts,
            merged.rejected_for,
            merged.as_of_ms,
        )
        assert (result.bounds, result.has_deltas, result.has_base) == (merged.bounds, True, False)
    assert [len(rows) for rows in _contents(loaded)[0]] == [
        50 - loaded.tombstones.count(),
        loaded.tombstones.count(),
        21,
    ]
    with pytest.raises(ConfigurationError, match="has the merge of orders, not of trades"):
        load_merged(spark, target, "trades")


def test_a_result_that_was_not_saved_to_its_end_is_refused(spark, tmp_path) -> None:
    """A target without its last row, written after all others, is an error that names the way out."""
    target = str(tmp_path / "merged")
    with merge_batch(
        spark, NAME, history=spark.createDataFrame([(b"1", b'{"id":1}', None, 0, 0, None)], DDL)
    ) as merged:
        merged.save(target)
    spark.read.parquet(target).where(F.col("topic") != "merge").write.partitionBy("topic").parquet(target + "2")
    with pytest.raises(ConfigurationError, match=r"no complete result of a merge: save it again with mode='overwrite'"):
        load_merged(spark, target + "2", NAME)


def _merged(spark, history, **given) -> dict[str, dict]:
    with merge_batch(spark, "orders", history=history, **given) as merged:
        return {row.key.decode(): json.loads(row.value) for row in merged.records.collect()}


@pytest.mark.long
def test_lines_are_merged_in_the_order_of_their_files(spark, tmp_path) -> None:
    """Lines are merged by file name and place, from packed files too; a line without a key can be rejected."""
    lines = [{"id": n % 50, "last": n, f"f{n % 3}": n} for n in range(3_000)]
    for number, begin in enumerate(range(0, 3_000, 1_000)):
        text = "".join(json.dumps(line) + "\n" for line in lines[begin : begin + 1_000]).encode()
        (tmp_path / f"part ä{number}.json").write_bytes(text)
    with gzip.open(tmp_path / "part ä3.json.gz", "wb") as packed:
        packed.write(b'{"id":7,"last":"packed"}\nrubbish\n{"last":1}\n')
    history = history_of(spark, str(tmp_path), "orders")
    expected: dict[str, dict] = {}
    for line in [*lines, {"id": 7, "last": "packed"}]:
        expected.setdefault(str(line["id"]), {}).update(line)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "20000")  # Parts of a file.
    try:
        assert _merged(spark, history, keyless="merge") == expected
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


@pytest.mark.long
def test_a_field_orders_rows(spark, tmp_path) -> None:
    """Rows of Parquet become messages of their columns, in the order of a field, and argument `nulls` is required.

    A column may have any name.
    """
    rows = "id LONG, at LONG, `q``y` LONG, to STRUCT<zip: STRING>"
    given = [(1, 3, None, ("z",)), (1, 1, 5, None), (2, 9, 1, None), (1, 2, 6, (None,))]
    path = str(tmp_path / "rows.parquet")
    spark.createDataFrame(given, rows).coalesce(1).write.parquet(path)
    with pytest.raises(ConfigurationError, match="nulls=None: a row has all columns"):
        history_of(spark, path, "orders", format="parquet")
    kept = history_of(spark, path, "orders", format="parquet", order_by="at", nulls="keep", command="publish")
    assert _merged(spark, kept)["1"] == {"id": 1, "at": 3, "q`y": None, "to": {"zip": "z"}}
    skipped = history_of(spark, path, "orders", format="parquet", order_by="at", nulls="skip")
    assert _merged(spark, skipped) == {
        "1": {"id": 1, "at": 3, "q`y": 6, "to": {"zip": "z"}},
        "2": {"id": 2, "at": 9, "q`y": 1},
    }


def _null_lists(batches):
    """Count the null lists, and the rows, of the Arrow batches that reach Python."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"nulls": [batch.column("headers").null_count], "rows": [batch.num_rows]})


def test_no_null_list_of_headers_reaches_arrow(spark) -> None:
    """Records without headers have an empty list in Arrow: Spark writes a batch of null lists in quadratic time."""
    rows = [(b"1", b"{}", None, 0, 0, None), (b"2", b"{}", [("a", b"1")], 0, 1, None)]
    history = spark.createDataFrame(rows, DDL)
    frames = {
        "history": as_records(history),
        "history without the column": as_records(history.drop("headers")),
        "base": as_base(history),
        "repair": _side(history, 0),
    }
    for name, frame in frames.items():
        assert not frame.schema["headers"].nullable, name
        counted = frame.mapInArrow(_null_lists, "nulls long, rows long").agg(F.sum("nulls")).first()
        assert counted is not None
        assert counted[0] == 0, name


def test_null_lists_do_not_reach_arrow(spark: SparkSession) -> None:
    """Records without headers reach Python with empty lists, as Spark writes null lists to Arrow in quadratic time."""
    now = datetime.now(UTC)
    rows = [(b"1", b"{}", None, 0, 0, now), (b"2", b"{}", [("client", b"c")], 0, 1, now)]
    records = spark.createDataFrame(rows, DDL).coalesce(1).selectExpr(*RECORD_COLUMNS)
    counts = records.mapInArrow(_null_lists, "nulls bigint, rows bigint").collect()
    assert [tuple(row) for row in counts] == [(0, 2)]
