"""The input of the streaming merge as Spark passes it to Python."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.merge.streaming.chunks import RECORD_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

_KAFKA_DDL = f"key binary, value binary, headers {HEADERS_DDL}, partition int, offset bigint, timestamp timestamp"


def _null_lists(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"nulls": [batch.column("headers").null_count], "rows": [batch.num_rows]})


def test_null_lists_do_not_reach_arrow(spark: SparkSession) -> None:
    """Records without headers reach Python with empty lists, as Spark writes null lists to Arrow in quadratic time."""
    now = datetime.now(UTC)
    rows = [(b"1", b"{}", None, 0, 0, now), (b"2", b"{}", [("client", b"c")], 0, 1, now)]
    records = spark.createDataFrame(rows, _KAFKA_DDL).coalesce(1).selectExpr(*RECORD_COLUMNS)
    counts = records.mapInArrow(_null_lists, "nulls bigint, rows bigint").collect()
    assert [tuple(row) for row in counts] == [(0, 2)]
