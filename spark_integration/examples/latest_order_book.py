"""Prints the current order book: the latest record of every open order, summed by instrument, side and price.

`read_sow` returns one row per live order, merged from all its publishes and deltas; deleted and expired orders are left
out. The filter is written in the filter language and applies to the merged record; Spark gets the matching rows. ::

    python -m spark_integration.examples.latest_order_book --bootstrap localhost:9092 --topic orders

An order has `id`, `instrument`, `side` (`buy` or `sell`), `price`, `open` (the open quantity) and `state`.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sowstream.spark import read_sow, spark_session
from spark_integration.foundation.options import Options

ORDER = "id STRING, instrument STRING, side STRING, price DECIMAL(18,6), open LONG, state STRING"


def order_book(spark: SparkSession, topic: str, options: Options) -> DataFrame:
    """The levels of each book: columns `instrument`, `side`, `price`, `orders`, `open`, best prices first."""
    working = read_sow(spark, topic, ORDER, options, filter="/state = 'working' AND /open > 0")
    levels = working.groupBy("instrument", "side", "price").agg(
        F.count("*").alias("orders"), F.sum("open").alias("open")
    )
    # The best bid is the highest, the best offer the lowest.
    distance = F.when(F.col("side") == "buy", -F.col("price")).otherwise(F.col("price"))
    return levels.orderBy("instrument", "side", distance)


def main() -> None:
    """Print the order book of a topic."""
    parser = argparse.ArgumentParser(description="The order book as it is now.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="where Kafka is")
    parser.add_argument("--topic", default="orders", help="the family's name")
    arguments = parser.parse_args()
    with spark_session("latest-order-book") as spark:
        book = order_book(spark, arguments.topic, {"kafka.bootstrap.servers": arguments.bootstrap})
        book.show(100, truncate=False)


if __name__ == "__main__":
    main()
