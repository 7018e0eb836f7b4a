"""Counts the updates per key and minute of a delta topic while they arrive.

A row of `stream_deltas` is one update; its `_sow.timestamp` is the time at which the worker merged it, so that a
watermark closes a minute soon after its end and Spark drops its state. `_sow.empty` marks touches, which change
nothing. ::

    python -m spark_integration.examples.change_rate --bootstrap localhost:9092 --topic orders --checkpoint /tmp/rate

With `--once` it processes the deltas that exist and ends.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sowstream.spark import spark_session, stream_deltas


def change_rate(deltas: DataFrame, every: str = "1 minute", late: str = "10 seconds") -> DataFrame:
    """Count changes: columns `since`, `sow_key`, `changes`, `inserts`, `deletes`, `touches`.

    Args:
        deltas: the result of `stream_deltas`.
        every: length of the windows.
        late: for how long after its end a window accepts deltas of other partitions.
    """
    counted = (
        deltas.select("_sow.*")
        .withWatermark("timestamp", late)
        .groupBy(F.window("timestamp", every), "sow_key")
        .agg(
            F.count_if(~F.col("empty")).alias("changes"),
            F.count_if(F.col("kind") == "insert").alias("inserts"),
            F.count_if(F.col("kind").isin("delete", "expire")).alias("deletes"),
            F.count_if("empty").alias("touches"),
        )
    )
    return counted.select(F.col("window.start").alias("since"), "sow_key", "changes", "inserts", "deletes", "touches")


def main() -> None:
    """Print the rates that changed, after each batch."""
    parser = argparse.ArgumentParser(description="Updates per key and minute.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="where Kafka is")
    parser.add_argument("--topic", default="orders", help="the family's name")
    parser.add_argument("--checkpoint", required=True, help="a directory: where the query keeps how far it is")
    parser.add_argument("--once", action="store_true", help="process the deltas that exist, and end")
    arguments = parser.parse_args()
    options = {"kafka.bootstrap.servers": arguments.bootstrap, "startingOffsets": "earliest"}
    with spark_session("change-rate") as spark:
        rates = change_rate(stream_deltas(spark, arguments.topic, options=options))
        writer = rates.writeStream.format("console").outputMode("update").option("truncate", "false")
        writer = writer.trigger(availableNow=True) if arguments.once else writer.trigger(processingTime="10 seconds")
        writer.option("checkpointLocation", arguments.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
