"""The base of a batch merge: existing SOW records and the marks of their publishers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from processor.store.marks import POSITION_NAME
from processor.wire.columns import VERSION
from processor.wire.partition_marks import LIVES_NAME, InputPosition, LivesMark
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


class PartitionMarks(NamedTuple):
    """The marks of partitions (`processor.wire.partition_marks`), by partition, as far as there are any."""

    lives: Mapping[int, LivesMark]
    """The versions of lives."""
    positions: Mapping[int, InputPosition]
    """The input positions."""


def partition_marks(marks: DataFrame) -> PartitionMarks:
    """Read the marks of partitions.

    Args:
        marks: the last value of each mark: `partition`, `key`, `value`.
    """
    is_own = F.col("key").isin(LIVES_NAME, POSITION_NAME) & F.col("value").isNotNull()
    lives: dict[int, LivesMark] = {}
    positions: dict[int, InputPosition] = {}
    for row in marks.where(is_own).select("partition", "key", "value").collect():
        if bytes(row.key) == LIVES_NAME:
            if (mark := LivesMark.read(bytes(row.value))) is not None:
                lives[row.partition] = mark
        elif (position := InputPosition.read(bytes(row.value))) is not None:
            positions[row.partition] = position
    return PartitionMarks(lives, positions)


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
        ConfigurationError: workers are running, the group never had any, or the SOW topic has more input than its
            offsets say.
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
    since = {number: committed.get(number, oldest[number]) for number in range(partitions)}
    marks = partition_marks(there)
    refuse_other_input(settings, marks.positions, topic_id, since)
    bases = {number: mark.base_in(topic_id) for number, mark in marks.lives.items()}
    base = Base(as_base(latest(spark, settings, family, "sow", options)), publishers_marks(there), bases)
    return base, since


def refuse_other_input(
    settings: TopicSettings, positions: Mapping[int, InputPosition], topic_id: str, since: Mapping[int, int]
) -> None:
    """Make sure that the SOW topic has no input behind the workers' offsets, which would be merged twice.

    Args:
        settings: the settings of the topic.
        positions: its input positions.
        topic_id: Kafka's id of the input topic.
        since: the workers' offset of each partition.

    Raises:
        ConfigurationError: it has, by its input positions, or is half written.
    """
    for number, position in sorted(positions.items()):
        is_ahead = position.topic_id == topic_id and position.offset > since[number]
        if is_ahead or position.application_id != settings.application_id:
            raise ConfigurationError(
                f"{settings.kafka_topic('sow')} partition {number} was written by {position.application_id!r}, with "
                f"input up to offset {position.offset}, and the workers' group stands at {since[number]}: records "
                "would be merged twice. If a hand-over has died: repeat it with the same `Merged`, or as it was saved "
                "(`load_merged`), or merge all input and hand it over with mode='repair'. If not: `sowstream offsets "
                f"show {settings.name}`"
            )
