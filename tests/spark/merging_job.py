"""A streaming merge in its own process."""

from __future__ import annotations

import sys
from pathlib import Path

from processor.config import load
from spark_integration import spark_session
from spark_integration.merge.streaming.merge_stream import merge_stream
from tests.spark.test_merge_stream import PROVIDER, ROCKSDB


def main(topic: str, config: str, checkpoint: str, cores: str, offsets: str) -> None:
    """Merge until killed, with a number of cores and a limit of records in a micro-batch."""
    spark = spark_session(
        "merging",
        **{
            "spark.master": f"local[{cores}]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            PROVIDER: ROCKSDB,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    options = {
        "kafka.bootstrap.servers": load(Path(config)).kafka["bootstrap.servers"],
        "maxOffsetsPerTrigger": offsets,
    }
    writer = merge_stream(spark, topic, config=config, options=options)
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="200 milliseconds").start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
