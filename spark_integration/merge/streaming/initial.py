"""The initial state of a streaming merge: the records and marks that workers have written to their topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import Stop
from processor.store.marks import FENCE_NAME, POSITION_NAME
from processor.topics.family import Role
from processor.wire.record_headers import stored_from
from spark_integration.merge.streaming.chunks import CHUNKS_DDL, RECORD_COLUMNS, bundled
from spark_integration.merge.streaming.slot import slot_of
from spark_integration.options import table_options

if TYPE_CHECKING:
    from processor.record import Record
    from spark_integration.merge.streaming.state import SparkState
    from spark_integration.settings import TopicSettings

SOW: Final = "sow"
"""Kind of a row with records of the SOW topic."""
MARK: Final = "mark"
"""Kind of a row with marks."""
_BEGINNING: Final = "beginning"


def initial_state(spark: SparkSession, settings: TopicSettings, options: Mapping[str, str]) -> DataFrame:
    """Read the last record of every key and the last value of every mark, by slot, and add a row for each partition.

    Without that row, a partition with empty topics could not recognise its first micro-batch.
    """
    beginnings = [(slot_of(partition), -1, None, _BEGINNING) for partition in range(settings.topic.partitions)]
    state = spark.createDataFrame(beginnings, f"{CHUNKS_DDL}, kind string")
    roles: tuple[Role, ...] = (SOW, MARK)
    for role in roles:
        latest = _latest(spark, settings, role, options).mapInArrow(bundled, CHUNKS_DDL)
        state = state.union(latest.withColumn("kind", F.lit(role)))
    return state


def load(state: SparkState, records: Sequence[Record]) -> None:
    """Store records of the SOW topic in the state.

    Raises:
        Stop: a record was not written by a worker.
    """
    for record in records:
        try:
            state.put_many({record.key or b"": stored_from(record)})
        except ValueError as error:
            place = f"the record with the key {record.key!r:.100} at offset {record.offset} of its partition"
            raise Stop(f"the SOW topic cannot be begun with: {place} is not what a worker writes: {error}") from error


def _latest(spark: SparkSession, settings: TopicSettings, role: Role, options: Mapping[str, str]) -> DataFrame:
    """The last record of each key, without tombstones, in the columns for `bundled`."""
    kafka_options = table_options(settings.family, role, options, settings.names)
    records = spark.read.format("kafka").options(**kafka_options).load()
    # As in `read_sow`: a key has one partition, where offsets order its records.
    return (
        records.groupBy("partition", "key")
        .agg(F.max_by(F.struct("value", "headers", "offset", "timestamp"), "offset").alias("latest"))
        .select("partition", "key", "latest.*")
        .where(F.col("value").isNotNull() & ~F.col("key").isin(POSITION_NAME, FENCE_NAME))
        .selectExpr(*RECORD_COLUMNS)
    )
