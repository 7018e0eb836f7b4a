"""Spark and the topics: SOW topics as tables, delta topics as streams, DataFrames as deltas; merging on Spark."""

try:
    import pyspark as _pyspark  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "spark_integration needs PySpark; install it with: pip install 'sowstream[spark]'", name="pyspark"
    ) from error

from spark_integration.merge.batch import merge_batch
from spark_integration.merge.handover import hand_over
from spark_integration.merge.stream import merge_stream
from spark_integration.publish import publish_deltas
from spark_integration.read import read_sow
from spark_integration.session import spark_session
from spark_integration.stream import stream_deltas, stream_sow

__all__ = [
    "hand_over",
    "merge_batch",
    "merge_stream",
    "publish_deltas",
    "read_sow",
    "spark_session",
    "stream_deltas",
    "stream_sow",
]
