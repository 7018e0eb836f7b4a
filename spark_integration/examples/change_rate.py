"""How often each record changes: updates per key and minute, from the delta topic, as they come.

A row of `stream_deltas` is one update; its `timestamp` is when the worker merged it, so that a watermark closes a
minute soon after it is over, and Spark forgets it. A touch, which changes nothing, is told by `empty`. ::

    python -m spark_integration.examples.change_rate --bootstrap localhost:9092 --topic orders --checkpoint /tmp/rate

With `--once` it does what there is, and ends.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_integration import spark_session, stream_deltas


def change_rate(deltas: DataFrame, every: str = "1 minute", late: str = "10 seconds") -> DataFrame:
    """Count changes: columns `since`, `sow_key`, `changes`, `inserts`, `deletes`, `touches`.

    Args:
        deltas: what `stream_deltas` gives.
        every: length of the windows.
        late: for how long after its end a window waits for deltas of other partitions.
    """
    counted = (
        deltas.withWatermark("timestamp", late)
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
    """Show the rates on the console, those that changed with each batch."""
    parser = argparse.ArgumentParser(description="Updates per key and minute.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="where Kafka is")
    parser.add_argument("--topic", default="orders", help="the family's name")
    parser.add_argument("--checkpoint", required=True, help="a directory: where the query keeps how far it is")
    parser.add_argument("--once", action="store_true", help="do what there is, and end")
    arguments = parser.parse_args()
    options = {"kafka.bootstrap.servers": arguments.bootstrap, "startingOffsets": "earliest"}
    with spark_session("change-rate") as spark:
        rates = change_rate(stream_deltas(spark, arguments.topic, options=options))
        writer = rates.writeStream.format("console").outputMode("update").option("truncate", "false")
        writer = writer.trigger(availableNow=True) if arguments.once else writer.trigger(processingTime="10 seconds")
        writer.option("checkpointLocation", arguments.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
