"""The base of a batch merge: existing SOW records and the marks of their publishers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from processor.wire.columns import VERSION
from processor.wire.partition_marks import LIVES_NAME, LivesMark
from processor.wire.publisher_mark import PUBLISHERS, WORDS_HEADER
from spark_integration.merge.batch.fold import BASE_OFFSET
from spark_integration.merge.batch.history import read_topic, without_nulls
from spark_integration.read.metadata_columns import header_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.topics.family import Role
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.topic_family import TopicFamily

_COLUMNS = ("key", "value", "headers", "partition")


class Base(NamedTuple):
    """The state of the world before a merge."""

    records: DataFrame
    """The records, with the columns that a merge reads (`RECORDS_DDL`)."""
    marks: DataFrame | None
    """The marks of the clients: partition, name, mark (`processor.wire.publisher_mark`); None where there are none."""
    bases: Mapping[int, int] = MappingProxyType({})
    """What is added to the versions of new records, by partition: see `processor.wire.partition_marks`."""


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


def lives_in(marks: DataFrame) -> dict[int, LivesMark]:
    """The mark of the versions of lives in each partition, as far as there is one.

    Args:
        marks: the last value of each mark: `partition`, `key`, `value`.
    """
    rows = marks.where(F.col("key") == F.lit(LIVES_NAME)).select("partition", "value").collect()
    read = {row.partition: LivesMark.read(None if row.value is None else bytes(row.value)) for row in rows}
    return {partition: mark for partition, mark in read.items() if mark is not None}


def used_in(records: DataFrame) -> dict[int, int]:
    """The version of each partition above which its next lives begin, see `mark_above`.

    Args:
        records: SOW records, deletes included: `partition`, `value`, `headers`.
    """
    version = F.expr(header_number(VERSION)) + F.when(F.col("value").isNull(), 0).otherwise(1)
    rows = records.groupBy("partition").agg(F.max(version).alias("version")).collect()
    return {row.partition: row.version for row in rows if row.version is not None}


def publishers_marks(records: DataFrame) -> DataFrame:
    """Read the marks of publishers from the records of a mark topic: `partition`, `name`, `mark`."""
    words = F.try_element_at(F.filter("headers", lambda header: header["key"] == WORDS_HEADER), F.lit(-1))["value"]
    mark = F.when(words.isNull(), F.col("value")).otherwise(F.concat("value", F.lit(b" "), words))
    is_publishers = F.col("value").isNotNull() & F.startswith(F.col("key"), F.lit(PUBLISHERS))
    return records.where(is_publishers).select("partition", F.col("key").alias("name"), mark.alias("mark"))


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
    there = latest(spark, settings, family, "mark", options).where("value IS NOT NULL")
    topic_id = family.admin.topic_id(family.source)
    bases = {number: mark.base_in(topic_id) for number, mark in lives_in(there).items()}
    base = Base(as_base(latest(spark, settings, family, "sow", options)), publishers_marks(there), bases)
    return base, {number: committed.get(number, oldest[number]) for number in range(partitions)}
