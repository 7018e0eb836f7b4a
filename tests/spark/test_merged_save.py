from __future__ import annotations

import datetime as dt

import pytest

from processor.errors import ConfigurationError
from tests.spark.merge_histories import NAME, NOW_MS

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from spark_integration.merge.batch.merge_batch import merge_batch
from spark_integration.merge.batch.result import load_merged

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

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
