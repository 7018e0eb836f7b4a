"""Keeps a table for dashboards that follows a topic, and prints figures from it.

Each batch of the SOW topic inserts, replaces and removes rows of a table: plain Parquet here, `format="delta"` or
`"iceberg"` where the session has the package. A reader of the table sees one row per live record and needs no Kafka.
The lag of the table behind the topic is printed after each batch. ::

    python -m spark_integration.examples.dashboard --bootstrap localhost:9092 --topic orders \
        --table /tmp/orders --checkpoint /tmp/orders-checkpoint

An order has `id`, `customer`, `state` and `balance`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sowstream.spark import spark_session, stream_sow
from spark_integration.foundation.options import Options
from spark_integration.lag import LagListener, PartitionLag
from spark_integration.tables.upsert import read_snapshot, upsert_to

ORDER = "id STRING, customer STRING, state STRING, balance DECIMAL(18,2)"


def follow(spark: SparkSession, topic: str, options: Options, table: str, checkpoint: str) -> None:
    """Apply all updates that the topic has now to the table; a second run continues where the first one ended."""
    orders = stream_sow(spark, topic, ORDER, {**options, "startingOffsets": "earliest"})
    writer = orders.writeStream.foreachBatch(upsert_to(table)).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def figures(orders: DataFrame) -> DataFrame:
    """The figures by customer: columns `customer`, `orders`, `waiting`, `balance`, `updated`."""
    return (
        orders.groupBy("customer")
        .agg(
            F.count("*").alias("orders"),
            F.count_if(F.col("state") == "new").alias("waiting"),
            F.sum("balance").alias("balance"),
            F.max("_sow.timestamp").alias("updated"),
        )
        .orderBy("customer")
    )


def print_lag(lags: Sequence[PartitionLag]) -> None:
    """Print how many offsets the table is behind the topic."""
    sys.stdout.write(f"{sum(lag.offsets for lag in lags)} offsets behind\n")


def main() -> None:
    """Bring the table up to date and show the figures."""
    parser = argparse.ArgumentParser(description="A table that follows a topic, and figures from it.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="where Kafka is")
    parser.add_argument("--topic", default="orders", help="the family's name")
    parser.add_argument("--table", required=True, help="a directory for the table")
    parser.add_argument("--checkpoint", required=True, help="a directory: where the query keeps how far it is")
    arguments = parser.parse_args()
    options = {"kafka.bootstrap.servers": arguments.bootstrap}
    with spark_session("dashboard") as spark:
        spark.streams.addListener(LagListener(print_lag))
        follow(spark, arguments.topic, options, arguments.table, arguments.checkpoint)
        figures(read_snapshot(spark, arguments.table)).show(100, truncate=False)


if __name__ == "__main__":
    main()
