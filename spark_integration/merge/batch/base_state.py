"""The base of a batch merge: existing SOW records and the marks of their publishers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from processor.repair.worker_positions import PartitionPosition, first_held, first_uncommitted, state_of
from processor.store.marks import POSITION_NAME
from processor.wire.columns import VERSION
from processor.wire.partition_marks import HALF_WRITTEN, HAND_OVER_AGAIN, LIVES_NAME, InputPosition, LivesMark
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
        ConfigurationError: workers are running, the group never had any, or they would hold a partition.
    """
    family.refuse_members("what they write while it is read would be merged twice")
    refuse_uncommitted(settings, family)
    marks_there = latest(spark, settings, family, "mark", options).where("value IS NOT NULL")
    marks = partition_marks(marks_there)
    if not (marks.positions or family.committed(family.partitions("publish"))):
        raise ConfigurationError(
            f"base='sow', but the group {family.group} has no offsets: nothing says which input is in the SOW topic. "
            "Leave base out to merge all of the input, or give the records and `since`"
        )
    since, topic_id = begins_of_workers(settings, family, marks), family.admin.topic_id(family.source)
    bases = {number: mark.base_in(topic_id) for number, mark in marks.lives.items()}
    base = Base(as_base(latest(spark, settings, family, "sow", options)), publishers_marks(marks_there), bases)
    return base, since


def refuse_uncommitted(settings: TopicSettings, family: TopicFamily) -> None:
    """Refuse the state of workers without transactions that died with records behind their offsets.

    Raises:
        ConfigurationError: the message names the partition and the remedy.
    """
    partitions = family.partitions("publish")
    ends = family.admin.end_offsets(settings.kafka_topic("sow"), range(partitions))
    notes = {number: note for number, (_, note) in family.committed_with_notes(partitions).items()}
    if (partition := first_uncommitted(notes, ends)) is not None:
        raise ConfigurationError(
            f"{settings.kafka_topic('sow')} partition {partition}: a worker without transactions (guarantee: "
            "at_least_once) died before it committed its offset: its last records would be merged twice. Let a "
            "worker catch up, and stop it"
        )


def begins_of_workers(settings: TopicSettings, family: TopicFamily, marks: PartitionMarks) -> dict[int, int]:
    """Return the input offset of each partition at which its workers would begin: the SOW topic has the input before.

    Args:
        settings: the settings of the topic.
        family: its topics.
        marks: its marks, read before the group's offsets: those are never behind them.

    Raises:
        ConfigurationError: a worker would hold a partition, as input would be merged twice, or is gone.
    """
    topic_id, partitions = family.admin.topic_id(family.source), family.partitions("publish")
    committed, oldest = family.committed_with_notes(partitions), family.bounds("publish", partitions).begins
    positions = []
    for number, begin in oldest.items():
        at, note = committed.get(number, (None, None))
        position, lives = marks.positions.get(number), marks.lives.get(number)
        one = PartitionPosition(number, at, note, position, begin, begin, lives, "")
        positions.append(one._replace(state=state_of(one, topic_id, settings.application_id)))
    held = first_held(positions, family.bounds("sow", partitions).ends)
    if held is None:
        return {one.partition: one.begin for one in positions}
    where = f"{settings.kafka_topic('sow')} partition {held.partition}: {held.state}"
    if held.position is not None and held.position.note == HALF_WRITTEN:
        raise ConfigurationError(f"{where}: {HAND_OVER_AGAIN}")
    raise ConfigurationError(
        f"{where}, so workers hold it, and input would be merged twice or left out. `sowstream offsets show "
        f"{settings.name}` says more, and `sowstream offsets adopt {settings.name}` sets where it goes on"
    )
