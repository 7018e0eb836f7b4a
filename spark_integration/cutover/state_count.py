"""Counts the records in the state of a streaming merge, as its checkpoint has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_integration.merge.streaming.buckets import SIZE, entries_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def records_in_state(spark: SparkSession, checkpoint: str) -> int:
    """The number of records in the state after the last committed micro-batch."""
    reader = spark.read.format("statestore").option("path", checkpoint).option("stateVarName", "buckets")
    sizes = reader.load().where(F.col("user_map_key.name") == F.lit(SIZE)).select("user_map_value.value")
    return sum(entries_in(bytes(row)) for (row,) in sizes.collect())
