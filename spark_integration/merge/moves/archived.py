"""Reads an archive of a topic, and the topic itself from where the archive ends, as one history.

An archive is a directory of Parquet files, or of another format of Spark, with the columns of Spark's Kafka source:
`key`, `value`, `headers`, `partition`, `offset`, `timestamp`; and `topic` where it has several topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType

from processor.errors import ConfigurationError
from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.merge.batch.history import read_topic
from spark_integration.merge.topic_family import Bounds

if TYPE_CHECKING:
    from processor.topics.family import Role
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.topic_family import TopicFamily

log = structlog.stdlib.get_logger("sowstream.spark")

_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp")


class History(NamedTuple):
    """The records of one topic, from an archive and from Kafka."""

    rows: DataFrame
    """The columns of Spark's Kafka source, without `topic`."""
    begins: Mapping[int, int]
    """The first offset of each partition that has records."""


def archived(spark: SparkSession, path: str, settings: TopicSettings, role: Role, data_format: str) -> DataFrame:
    """Read the records of one topic from an archive.

    Raises:
        ConfigurationError: there is no such archive, or it lacks a column.
    """
    try:
        rows = spark.read.format(data_format).load(path)
    except AnalysisException as error:
        raise ConfigurationError(
            f"{path} cannot be read as {data_format}: {str(error).partition(chr(10))[0]}"
        ) from None
    has_headers = "headers" in rows.columns and isinstance(rows.schema["headers"].dataType, ArrayType)
    if missing := [name for name in _COLUMNS if name not in rows.columns and name != "headers"]:
        raise ConfigurationError(
            f"{path} has no column {missing[0]!r}: an archive has those of Spark's Kafka source, "
            f"{', '.join(_COLUMNS)}. Plain files, without an offset, can be read by `history_of`"
        )
    if "topic" in rows.columns:
        rows = rows.where(F.col("topic") == settings.kafka_topic(role))
    headers = F.col("headers").cast(HEADERS_DDL) if has_headers else F.array().cast(HEADERS_DDL)
    return rows.select("key", "value", headers.alias("headers"), "partition", "offset", "timestamp")


def history_to(
    archive: DataFrame | None, settings: TopicSettings, family: TopicFamily, role: Role, ends: Mapping[int, int],
    options: Options, spark: SparkSession, *, accept_unknown: bool = True,
) -> History:  # fmt: skip
    """Join an archive with the rest of its topic, up to an offset of each partition.

    Args:
        archive: the records of this topic; None: all records are in Kafka.
        settings: the settings of the topic.
        family: its topics.
        role: the role of the topic.
        ends: the offset after the last record of each partition.
        options: options of Spark's Kafka source.
        spark: the session.
        accept_unknown: go on where offsets between archive and topic may have been transaction markers or records.

    Raises:
        ConfigurationError: records between the archive and the topic are gone.
    """
    bounds = family.bounds(role, len(ends))
    first: dict[int, int] = {}
    reached: dict[int, int] = {}
    if archive is not None:
        extents = archive.groupBy("partition").agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        for row in extents.collect():
            first[row["partition"]], reached[row["partition"]] = row["first"], row["last"] + 1
        refuse_gaps(settings.kafka_topic(role), reached, bounds, ends, accept_unknown=accept_unknown)
    begins = {
        number: min(max(reached.get(number, 0), oldest), ends[number]) for number, oldest in bounds.begins.items()
    }
    rest = read_topic(spark, settings, role, Bounds(begins, dict(ends)), options).select(*_COLUMNS)
    rows = rest if archive is None else before(archive, ends).unionByName(rest)
    return History(rows, {partition: first.get(partition, begin) for partition, begin in begins.items()})


def refuse_gaps(
    topic: str, reached: Mapping[int, int], bounds: Bounds, ends: Mapping[int, int], *, accept_unknown: bool
) -> None:
    """Make sure that no records between an archive and its topic are gone.

    Args:
        topic: the Kafka topic.
        reached: the offset after the last archived record; partitions without one are left out.
        bounds: the offsets in Kafka.
        ends: the offset after the last record wanted of each partition.
        accept_unknown: go on, with a warning, where a partition is empty: the last offsets before its end may have been
            transaction markers, of which an archive has none, or records.

    Raises:
        ConfigurationError: some are gone, or may be.
    """
    for partition, oldest in bounds.begins.items():
        end = reached.get(partition, 0)
        if min(oldest, ends[partition]) <= end:
            continue
        gap = f"{topic} partition {partition}: the archive ends before offset {end}, and the topic begins at {oldest}"
        if oldest < bounds.ends[partition]:
            raise ConfigurationError(f"{gap}: the records between are gone")
        if not accept_unknown:
            raise ConfigurationError(
                f"{gap}, its end: the offsets between were transaction markers, or records that are gone. If the "
                "publishers use transactions and the archive was complete: --allow-partial"
            )
        log.warning(
            "offsets between archive and empty partition: transaction markers, or records that are gone",
            topic=topic, partition=partition, archive_end=end, topic_begin=oldest,
        )  # fmt: skip


def before(rows: DataFrame, ends: Mapping[int, int]) -> DataFrame:
    """The records before an offset of each partition."""
    return rows.where(F.col("offset") < offset_of(ends))


def offset_of(offsets: Mapping[int, int]) -> Column:
    """The offset for the partition of a row; null for other partitions."""
    pairs = [F.lit(number).cast("bigint") for item in offsets.items() for number in item]
    return F.create_map(*pairs)[F.col("partition").cast("bigint")]


def ends_at(rows: DataFrame, ends: Mapping[int, int], time_ms: int) -> dict[int, int]:
    """For each partition the offset of the first record of a time or later; its end without one."""
    later = rows.where(F.unix_millis("timestamp") >= time_ms).groupBy("partition").agg(F.min("offset").alias("first"))
    offsets = {row["partition"]: row["first"] for row in later.collect()}
    return {partition: min(end, offsets.get(partition, end)) for partition, end in ends.items()}
