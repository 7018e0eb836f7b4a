"""A streaming job that publishes deltas and may be killed: `python -m tests.spark.publishing_job`, see `main`."""

from __future__ import annotations

import argparse

from pyspark.sql import functions as F  # noqa: N812

from spark_integration import spark_session
from spark_integration.publish.publish import publish_deltas

SLOW = {"kafka.batch.size": "0"}
"""One record a request, and several open requests, so that a kill leaves partial work."""


def main() -> None:
    """Publish the rows of the source topic, and end after the last one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("source")
    parser.add_argument("family")
    parser.add_argument("checkpoint")
    parser.add_argument("batch_rows", type=int)
    parser.add_argument("cores", type=int)
    arguments = parser.parse_args()
    settings = {
        "spark.master": f"local[{arguments.cores}]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What a restart may change and the numbers of the rows do not depend on.
        "spark.sql.shuffle.partitions": str(arguments.cores + 1),
    }
    spark = spark_session("publishing-job", **settings)
    servers = {"kafka.bootstrap.servers": arguments.bootstrap}
    source = spark.readStream.format("kafka").options(
        **servers,
        subscribe=arguments.source,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(arguments.batch_rows),
    )
    rows = source.load().select(F.from_json(F.col("value").cast("string"), "id STRING, n LONG").alias("row"))
    writer = publish_deltas(
        rows.select("row.*"), arguments.family, key=["id"], columns=["n"], options=servers | SLOW, order_by=["n"]
    )
    assert writer is not None, "a stream has a writer"
    query = writer.option("checkpointLocation", arguments.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
