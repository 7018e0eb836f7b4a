"""A SOW topic as a table: the latest record of every key, without the deleted ones."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from spark_integration.columns import record_columns, sow_key, version
from spark_integration.options import Options, table_options


def read_sow(
    spark: SparkSession, topic: str, schema: StructType | str | None = None, options: Options | None = None
) -> DataFrame:
    """Read the state of the world as it is committed when the query starts.

    Returns:
        One row per live key: the record's fields (or `value`, its JSON text, without a schema), then `sow_key`
        (string), `version` (long), `timestamp`, `partition` (int) and `offset` (long) of the record.

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.sow` is added.
        schema: see `record_columns`.
        options: of Spark's Kafka source; `endingOffsets` and its kin read an earlier state, as far as compaction has
            left one.

    Raises:
        ConfigurationError: options, topic or schema cannot be used.
    """
    records = spark.read.format("kafka").options(**table_options(topic, "sow", options)).load()
    # A key lives in one partition, where offsets order its records. Tombstones must take part: they are what makes
    # the records before them old. Decoding comes last, so it is paid once per key and not once per record.
    latest = (
        records.groupBy("partition", "key")
        .agg(F.max_by(F.struct("value", "headers", "timestamp", "offset"), "offset").alias("latest"))
        .select("partition", "key", "latest.*")
        .where("value IS NOT NULL")
    )
    metadata = {
        "sow_key": sow_key(),
        "version": version(),
        "timestamp": F.col("timestamp"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
    }
    return latest.select(*record_columns(schema, metadata))
