"""The input of a merge: the records published before a cut, which is fixed before the read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, IntegralType, StringType, TimestampType

from processor.errors import ConfigurationError
from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.foundation.options import offsets_option, refuse_given, table_options
from spark_integration.merge.topic_family import Bounds

if TYPE_CHECKING:
    from processor.topics.family import Role
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.topic_family import TopicFamily

Offsets: TypeAlias = Mapping[int, int]
"""An offset for each partition, by partition number."""

_OURS: Final = {
    "endingoffsets": "`until` says where the history ends",
    "endingoffsetsbytimestamp": "`until` says where the history ends",
    "endingtimestamp": "`until` says where the history ends",
    "failondataloss": "a history with a gap merges to something else",
}


def bounds_of(family: TopicFamily, partitions: int, since: Offsets | None, until: Offsets | datetime | None) -> Bounds:
    """The offsets of the input topic to read, from begin to end.

    Args:
        family: the family of topics.
        partitions: the number of partitions.
        since: the first offset of each partition; None: the oldest record kept.
        until: offset after the last record of each partition, or a time after the last record; None: everything
            committed now.

    Raises:
        ConfigurationError: the topic does not have these offsets.
    """
    available = family.bounds("publish", partitions)
    ends = available.ends
    if isinstance(until, datetime):
        ends = family.at_time("publish", available, round(until.timestamp() * 1000))
    elif until is not None:
        ends = all_of("until", until, partitions)
    begins = available.begins if since is None else all_of("since", since, partitions)
    for partition in range(partitions):
        begin, end, oldest, newest = (
            offsets[partition] for offsets in (begins, ends, available.begins, available.ends)
        )
        if not oldest <= begin <= end <= newest:
            raise ConfigurationError(
                f"partition {partition} is to be read from offset {begin} to {end}; the topic has {oldest} to {newest}"
                + ("; what was before is gone: begin with `base`" if begin < oldest else "")
            )
    return Bounds(begins, ends)


def all_of(argument: str, offsets: Offsets, partitions: int) -> dict[int, int]:
    """Make sure that offsets are given for every partition."""
    if set(offsets) != set(range(partitions)):
        raise ConfigurationError(
            f"{argument} has the partitions {sorted(offsets)}; the topic has 0 to {partitions - 1}: give each of them"
        )
    return dict(offsets)


def read_topic(spark: SparkSession, settings: TopicSettings, role: Role, bounds: Bounds, options: Options) -> DataFrame:
    """Read the committed records of a part of a topic, in the columns of Spark's Kafka source.

    Raises:
        ConfigurationError: an option is set by Sowstream itself.
    """
    refuse_given(options, _OURS)
    kafka_topic = settings.kafka_topic(role)
    kafka_options = table_options(settings.family, role, options, settings.names) | {
        "startingOffsets": offsets_option(kafka_topic, bounds.begins),
        "endingOffsets": offsets_option(kafka_topic, bounds.ends),
        "failOnDataLoss": "true",
    }
    return spark.read.format("kafka").options(**kafka_options).load()


def without_nulls(headers: Column) -> Column:
    """Return the column `headers` with empty lists for nulls: the same to a merge, and a quarter of the time.

    Spark's writer of Arrow lists fills the offsets of a batch again from its start for each null list that it adds
    (`ListVector.setValueCount`, called by `ArrowWriter.sizeInBytes`).
    """
    return F.coalesce(headers.cast(HEADERS_DDL), _no_headers())


def _no_headers() -> Column:
    return F.array().cast(HEADERS_DDL)


def as_records(history: DataFrame) -> DataFrame:
    """Convert rows of Spark's Kafka source to the columns that a merge reads: `RECORDS_DDL`.

    Args:
        history: `key` and `value` (binary or string), `partition` and `offset` (whole numbers), `timestamp`; `headers`
            may be left out.

    Raises:
        ConfigurationError: a column is missing or of another type.
    """
    types = {field.name: field.dataType for field in history.schema.fields}
    for names, kinds, word in (
        (("key", "value"), (BinaryType, StringType), "binary"),
        (("partition", "offset"), (IntegralType,), "a whole number"),
        (("timestamp",), (TimestampType,), "a timestamp"),
    ):
        for name in names:
            if not isinstance(types.get(name), kinds):
                type_name = types[name].simpleString() if name in types else "missing"
                raise ConfigurationError(
                    f"column {name!r} of the history is {type_name}, not {word}; it has the columns of Spark's Kafka "
                    "source: key, value, headers, partition, offset, timestamp. `history_of` makes them of plain files"
                )
    has_headers = isinstance(types.get("headers"), ArrayType)
    return history.select(
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        (without_nulls(F.col("headers")) if has_headers else _no_headers()).alias("headers"),
        F.col("partition").cast("int").alias("partition"),
        F.col("offset").cast("bigint").alias("offset"),
        F.unix_millis("timestamp").alias("timestamp_ms"),
    )
