"""Compares a table with one row for each key with the SOW topic, as far as the table has got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.wire import columns as names
from spark_integration.merge.moves.archived import offset_of
from spark_integration.merge.moves.delta_replay import MISSING, SAME, SURPLUS, VALUE, VERSION
from spark_integration.merge.moves.differences import sow_before
from spark_integration.read.mask import FROM_JSON, TO_JSON
from spark_integration.read.metadata_columns import header_number
from spark_integration.tables.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.topic_family import TopicFamily

BEHIND: Final = "behind"
"""The table has not got the last record of the key yet."""

_METADATA: Final = "_sow"
_FLAT: Final = ("sow_key", "version", "timestamp", "expires_at", "source", "headers", "partition", "offset")


def table_rows(
    spark: SparkSession, settings: TopicSettings, family: TopicFamily, options: Options, path: str, table_format: str
) -> DataFrame:
    """Compare the rows of a table with the SOW topic.

    Args:
        spark: a session.
        settings: the settings of the topic.
        family: its topics.
        options: options of Spark's Kafka source.
        path: the path or the name of the table.
        table_format: `parquet` for the snapshots of `upsert_to`, else a format of Spark.

    Returns:
        A row for each key: `kind`, and the fields of `Difference`.

    Raises:
        ConfigurationError: there is no such table, or it has no metadata of records.
    """
    rows, applied = _read(spark, path, table_format)
    is_struct = _METADATA in rows.columns
    if not is_struct and not {"sow_key", "version", "partition", "offset"} <= set(rows.columns):
        raise ConfigurationError(f"{path} has neither the column {_METADATA} nor sow_key, version, partition, offset")

    def metadata(name: str) -> Column:
        return F.col(f"{_METADATA}.{name}" if is_struct else name)

    if applied is None:
        last = rows.groupBy(metadata("partition").alias("at")).agg(F.max(metadata("offset")).alias("last")).collect()
        applied = {row["at"]: row["last"] + 1 for row in last}
    fields = [field for field in rows.schema.fields if field.name not in ((_METADATA,) if is_struct else _FLAT)]
    partitions = settings.topic.partitions
    ends = family.bounds("sow", partitions).ends
    reached = {partition: applied.get(partition, 0) for partition in range(partitions)}
    wanted = rows.select(
        metadata("sow_key").alias("name"),
        metadata("version").alias("wanted_version"),
        F.to_json(F.struct(*(F.col(f"`{field.name}`") for field in fields)), TO_JSON).alias("wanted") if fields
        else F.lit("{}").alias("wanted"),
        metadata("partition").alias("wanted_partition"),
    )  # fmt: skip
    there = sow_before(spark, settings, family, ends, options).select(
        F.col("key").cast("string").alias("name"),
        "key",
        "partition",
        F.col("value").alias("there"),
        header_number(names.VERSION).alias("there_version"),
        (F.col("offset") >= offset_of(reached)).alias("is_behind"),
    )
    both = there.join(wanted, "name", "full_outer")
    # Only JSON can be read into the columns of a table here; of other types the versions are compared.
    is_same = F.lit(True)
    if settings.topic.message_type == "json" and fields:
        parsed = F.from_json(F.col("there").cast("string"), StructType(fields), FROM_JSON)
        is_same = F.to_json(parsed, TO_JSON).eqNullSafe(F.col("wanted"))
    kind = (
        F.when(F.col("is_behind"), BEHIND)
        .when(F.col("there").isNull() & F.col("wanted").isNull(), SAME)
        .when(F.col("there").isNull(), MISSING)
        .when(F.col("wanted").isNull(), SURPLUS)
        .when(~F.col("there_version").eqNullSafe(F.col("wanted_version")), VERSION)
        .otherwise(F.when(is_same, SAME).otherwise(VALUE))
    )
    return both.select(
        kind.alias("kind"),
        F.coalesce("partition", "wanted_partition").cast("int").alias("partition"),
        F.coalesce("key", F.col("name").cast("binary")).alias("key"),
        "there",
        F.col("wanted").cast("binary").alias("wanted"),
        "there_version",
        F.col("wanted_version").cast("bigint").alias("wanted_version"),
    )


def _read(spark: SparkSession, path: str, table_format: str) -> tuple[DataFrame, Mapping[int, int] | None]:
    """The rows of a table, and the next offset of each partition of the SOW topic, as far as it is known."""
    if table_format == "parquet":
        snapshots = Snapshots(spark, path)
        if (latest := snapshots.latest()) is not None:
            return snapshots.rows(latest), latest.applied
    try:
        return spark.read.format(table_format).load(path), None
    except AnalysisException as error:
        raise ConfigurationError(
            f"{path} cannot be read as {table_format}: {str(error).partition(chr(10))[0]}"
        ) from None
