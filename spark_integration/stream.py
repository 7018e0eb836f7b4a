"""The topics as streams: every update of the SOW topic, every change of the delta topic."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.topics import Role
from spark_integration.changed import changed
from spark_integration.columns import header_text, record_columns, sow_key, version
from spark_integration.options import Options, source_options


def stream_sow(
    spark: SparkSession, topic: str, schema: StructType | str | None = None, options: Options | None = None
) -> DataFrame:
    """Stream the full records: one row per update that compaction has left, deletes among them.

    Returns:
        A streaming DataFrame: the record's fields (or `value`), all null in a delete; then `sow_key`, `kind` (`insert`,
        `update`, `delete`, `expire`), `version`, `timestamp`, `partition`, `offset`.

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.sow` is added.
        schema: see `record_columns`.
        options: of Spark's Kafka source. As there, a new query starts at the latest offset unless `startingOffsets`
            says otherwise.

    Raises:
        ConfigurationError: options, topic or schema cannot be used.
    """
    return _records(spark, topic, "sow", options).select(*record_columns(schema, _metadata()))


def stream_deltas(
    spark: SparkSession, topic: str, schema: StructType | str | None = None, options: Options | None = None
) -> DataFrame:
    """Stream what changed: one row per update.

    Returns:
        A streaming DataFrame: as `stream_sow`, with the key fields and what changed only, and with `changed` (the JSON
        Pointers of every path the delta carries, key fields among them: a field that is null and in `changed` was set
        to null), `removed` (the JSON Pointers of the fields that are gone) and `empty` (true when nothing changed).

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.delta` is added.
        schema: see `record_columns`.
        options: as `stream_sow`.

    Raises:
        ConfigurationError: options, topic or schema cannot be used.
    """
    removed = F.from_json(header_text("removed"), "array<string>", {"mode": "FAILFAST"})
    metadata = _metadata() | {
        "changed": changed(F.col("value").cast("string")),
        "removed": F.coalesce(removed, F.array().cast("array<string>")),
        "empty": F.coalesce(header_text("empty") == "true", F.lit(False)),
    }
    return _records(spark, topic, "delta", options).select(*record_columns(schema, metadata))


def _records(spark: SparkSession, topic: str, role: Role, options: Options | None) -> DataFrame:
    return spark.readStream.format("kafka").options(**source_options(topic, role, options)).load()


def _metadata() -> dict[str, Column]:
    # The usual thing is not said in a header: what has a value and no kind is an update.
    unsaid = F.when(F.col("value").isNull(), "delete").otherwise("update")
    return {
        "sow_key": sow_key(),
        "kind": F.coalesce(header_text("kind"), unsaid),
        "version": version(),
        "timestamp": F.col("timestamp"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
    }
