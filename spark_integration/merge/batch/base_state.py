"""The base of a batch merge: existing SOW records and the marks of their publishers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from spark_integration.merge.batch.fold import BASE_OFFSET
from spark_integration.merge.batch.history import read_topic, without_nulls

if TYPE_CHECKING:
    from processor.topics.family import Role
    from spark_integration.merge.topic_family import TopicFamily
    from spark_integration.options import Options
    from spark_integration.settings import TopicSettings

_COLUMNS = ("key", "value", "headers", "partition")


class Base(NamedTuple):
    """The state of the world before a merge."""

    records: DataFrame
    """The records, with the columns that a merge reads (`RECORDS_DDL`)."""
    marks: DataFrame | None
    """The highest sequence of each client: partition, name, sequence; None where there are no marks."""


def as_base(records: DataFrame) -> DataFrame:
    """Convert SOW records to the columns that a merge reads.

    Args:
        records: `key`, `value`, `headers` and `partition`; one row for each key.

    Raises:
        ConfigurationError: a column is missing.
    """
    if missing := [name for name in _COLUMNS if name not in records.columns]:
        raise ConfigurationError(
            f"the base has no column {missing[0]!r}; SOW records have {', '.join(_COLUMNS)}, as on their topic: "
            "without its headers a record has no version"
        )
    return records.where("value IS NOT NULL").select(
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        without_nulls(F.col("headers")).alias("headers"),
        F.col("partition").cast("int").alias("partition"),
        F.lit(BASE_OFFSET).cast("bigint").alias("offset"),
        F.lit(0).cast("bigint").alias("timestamp_ms"),
    )


def latest(
    spark: SparkSession, settings: TopicSettings, family: TopicFamily, role: Role, options: Options
) -> DataFrame:
    """Read the last committed record of every key of a compacted topic, tombstones included.

    Returns:
        `partition`, `key`, `value`, `headers`.
    """
    bounds = family.bounds(role, family.partitions(role))
    records = read_topic(spark, settings, role, bounds, options)
    last = F.max_by(F.struct("value", "headers"), "offset").alias("last")
    return records.groupBy("partition", "key").agg(last).select("partition", "key", "last.*")


def from_topics(
    spark: SparkSession, settings: TopicSettings, family: TopicFamily, options: Options
) -> tuple[Base, dict[int, int]]:
    """Read the state of the world of stopped workers, and the input offsets at which they stopped.

    Raises:
        ConfigurationError: workers are running, or the group never had any.
    """
    family.refuse_members("what they write while it is read would be merged twice")
    partitions = family.partitions("publish")
    committed = family.committed(partitions)
    if not committed:
        raise ConfigurationError(
            f"base='sow', but the group {family.group} has no offsets: nothing says which input is in the SOW topic. "
            "Leave base out to merge all of the input, or give the records and `since`"
        )
    oldest = family.bounds("publish", partitions).begins
    marks = latest(spark, settings, family, "mark", options).where(
        F.col("value").isNotNull() & F.startswith(F.col("key"), F.lit(b"sequence/"))
    )
    sequences = marks.select(
        "partition", F.col("key").alias("name"), F.col("value").cast("string").cast("bigint").alias("sequence")
    )
    base = Base(as_base(latest(spark, settings, family, "sow", options)), sequences)
    return base, {number: committed.get(number, oldest[number]) for number in range(partitions)}
