"""Copies a topic to another one: each delta is published again as the same delta, so that nothing is lost or added.

`mask="_sow.changed"` publishes the fields that each delta carried, nulls included; `_sow.removed` names the removed
fields; a delete stays a delete. The offset orders the deltas of one batch. Workers of the copy drop the records that
Spark writes twice, as long as the checkpoint is kept: with it, Spark repeats the same records. ::

    python -m spark_integration.examples.mirror --bootstrap localhost:9092 --topic orders --copy orders_copy \
        --schema "id LONG, customer STRUCT<name: STRING>, balance DOUBLE" --checkpoint /tmp/mirror

The schema must contain every field that a delta may carry: the query fails at another field, with its name.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sowstream.spark import publish_deltas, spark_session, stream_deltas
from spark_integration.foundation.options import Options


def mirror(deltas: DataFrame, copy: str, options: Options) -> DataStreamWriter:
    """Create the writer that publishes deltas to another family.

    Args:
        deltas: the result of `stream_deltas`.
        copy: the name of the target family; its key is `/id`, and its null policy `set`.
        options: of Spark's Kafka sink.
    """
    rows = deltas.withColumn("is_gone", F.col("_sow.kind").isin("delete", "expire"))
    writer = publish_deltas(
        rows, copy, key=["id"], options=options, mask="_sow.changed", removed="_sow.removed", deleted="is_gone",
        order_by=["_sow.partition", "_sow.offset"],
    )  # fmt: skip
    assert writer is not None, "a stream has a writer"
    return writer


def start(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Copy the deltas; with `--once`, end after those that exist."""
    options = {"kafka.bootstrap.servers": arguments.bootstrap}
    deltas = stream_deltas(spark, arguments.topic, arguments.schema, options | {"startingOffsets": "earliest"})
    writer = mirror(deltas, arguments.copy, options).option("checkpointLocation", arguments.checkpoint)
    writer = writer.trigger(availableNow=True) if arguments.once else writer.trigger(processingTime="5 seconds")
    writer.start().awaitTermination()


def main() -> None:
    """Copy a topic to another one."""
    parser = argparse.ArgumentParser(description="A copy of a topic in another one.")
    parser.add_argument("--bootstrap", default="localhost:9092", help="where Kafka is")
    parser.add_argument("--topic", default="orders", help="the family's name")
    parser.add_argument("--copy", default="orders_copy", help="the other family's name")
    parser.add_argument("--schema", required=True, help="the fields of the records, as DDL")
    parser.add_argument("--checkpoint", required=True, help="a directory: where the query keeps how far it is")
    parser.add_argument("--once", action="store_true", help="copy the deltas that exist, and end")
    arguments = parser.parse_args()
    with spark_session("mirror") as spark:
        start(spark, arguments)


if __name__ == "__main__":
    main()
