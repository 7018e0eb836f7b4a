from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from spark_integration.merge.batch.base_state import as_base
from spark_integration.merge.batch.handover import _side
from spark_integration.merge.batch.history import as_records

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


def _null_lists(batches):
    """Count the null lists of the Arrow batches that reach Python."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"nulls": [batch.column("headers").null_count]})


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
        counted = frame.mapInArrow(_null_lists, "nulls long").agg(F.sum("nulls")).first()
        assert counted is not None
        assert counted[0] == 0, name
