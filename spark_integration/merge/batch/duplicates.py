"""Finds the duplicates in a history: records that publishers sent twice.

A worker remembers the highest accepted sequence of each client in a partition, and drops records not above it
(`processor.builtin.delta_merge.deduplication`). A merge key by key loses the order of the offsets, so
duplicates are found before it, from the headers alone: by a running maximum for each client, computed in the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.store.marks import NAMES_MAX
from processor.wire import columns as names
from processor.wire.ack import TEXT_BYTES_MAX
from spark_integration.merge.batch.fold import IS_REPEAT

if TYPE_CHECKING:
    from spark_integration.settings import TopicSettings

PLACE: Final = ["partition", "offset"]
"""The columns that identify a record of a history."""


def has_sequence() -> Column:
    """Whether a record has a header `sequence`."""
    return F.exists("headers", lambda header: header["key"] == names.SEQUENCE)


def sequences(records: DataFrame, settings: TopicSettings) -> DataFrame:
    """Select the records that may be duplicates: partition, offset, mark name, sequence, and whether it is a replay.

    Some records with headers that a worker rejects are left out here; the merge rejects the others.

    Args:
        records: `RECORDS_DDL`.
        settings: the settings of the topic.
    """
    client, sequence, source = (_last(name) for name in (names.CLIENT, names.SEQUENCE, names.SOURCE))
    own_topic = settings.kafka_topic("publish")
    # As `Deduplicator.came_in` reads it.
    came_in = F.regexp_extract(source.cast("string"), rf"^\Q{own_topic}\E/([0-9]{{1,5}})(?:/|\z)", 1)
    text = sequence.cast("string")
    return (
        records.where(F.col("key").isNotNull() & has_sequence() & _is_client(client))
        .select(
            *PLACE,
            F.concat(F.lit(b"sequence/"), F.coalesce(came_in, F.lit("")).cast("binary"), F.lit(b"/"), client).alias(
                "name"
            ),
            F.when(text.rlike(names.NUMBER_PATTERN), text.try_cast("bigint")).alias("sequence"),
            F.exists("headers", lambda header: header["key"] == names.REPLAY_OF).alias("is_replay"),
        )
        .where("sequence IS NOT NULL")
    )


def repeats(sequences: DataFrame, rejected: DataFrame | None = None, marks: DataFrame | None = None) -> DataFrame:
    """The partitions and offsets of the records that a worker would drop as duplicates.

    Args:
        sequences: the result of `sequences`.
        rejected: partition and offset of rejected records, which raise no mark; None: no record was rejected.
        marks: partition, name and sequence of the marks before the history; None: there were none.
    """
    counted = _counted(sequences, rejected, marks)
    before = Window.partitionBy("partition", "name").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    highest = F.max("accepted").over(before)
    return (
        counted.select(*PLACE, "is_replay", "sequence", highest.alias("highest"))
        .where("offset >= 0 AND NOT is_replay AND sequence <= highest")
        .select(*PLACE)
    )


def marks_after(sequences: DataFrame, rejected: DataFrame | None = None, marks: DataFrame | None = None) -> DataFrame:
    """The marks that a worker would have at the end: partition, name, sequence, and the offset that raised it last."""
    accepted = _counted(sequences, rejected, marks).where("accepted IS NOT NULL")
    raised = accepted.groupBy("partition", "name").agg(
        F.max("accepted").alias("sequence"),
        F.min_by("offset", F.struct(-F.col("accepted"), F.col("offset"))).alias("offset"),
    )
    # A worker does not remember more marks either.
    newest = F.row_number().over(Window.partitionBy("partition").orderBy(F.col("offset").desc(), "name"))
    return raised.select("*", newest.alias("rank")).where(F.col("rank") <= NAMES_MAX).drop("rank")


def marked(records: DataFrame, repeats: DataFrame, count: int) -> DataFrame:
    """Add a column `is_repeat`, true for the records at the `count` places in `repeats`.

    Duplicates are not left out: a worker rejects a record for its headers before it looks for duplicates.
    """
    places = repeats.select(*PLACE, F.lit(True).alias(IS_REPEAT))
    return records.join(F.broadcast(places) if count <= _BROADCAST_MAX else places, PLACE, "left")


_BROADCAST_MAX: Final = 200_000
"""Highest number of places for a broadcast join, some 20 MB on each executor; above it, both sides are shuffled."""


def _counted(sequences: DataFrame, rejected: DataFrame | None, marks: DataFrame | None) -> DataFrame:
    """Add a column `accepted`: the sequence, or null where the record raises no mark."""
    counted = sequences.withColumn("accepted", F.col("sequence"))
    if rejected is not None:
        counted = counted.join(rejected.select(*PLACE, F.lit(True).alias("is_rejected")), PLACE, "left").withColumn(
            "accepted", F.when(F.col("is_rejected").isNull(), F.col("sequence"))
        )
    counted = counted.select(*PLACE, "name", "sequence", "is_replay", "accepted")
    if marks is None:
        return counted
    first = marks.select(
        "partition",
        F.lit(-1).cast("bigint").alias("offset"),
        "name",
        "sequence",
        F.lit(False).alias("is_replay"),
        F.col("sequence").alias("accepted"),
    )
    return first.unionByName(counted)


def _last(name: str) -> Column:
    """The last value of a header, empty where it is null; null where there is none."""
    named = F.filter("headers", lambda header: header["key"] == name)
    last = F.try_element_at(named, F.lit(-1))
    return F.when(last.isNotNull(), F.coalesce(last["value"], F.lit(b"")))


def _is_client(client: Column) -> Column:
    return F.octet_length(client).between(1, TEXT_BYTES_MAX)
