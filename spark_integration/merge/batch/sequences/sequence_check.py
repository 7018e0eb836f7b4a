"""Checks that a merge has treated exactly those records as duplicates that a worker would drop.

A worker drops a record whose sequence is not above the highest one before it, by offset, of its client in the partition
(`processor.builtin.delta_merge.deduplication`). The tasks that merged have kept the sequences of all records
(`sequence_log`), in blocks: one client of one partition and about a million offsets. Each block is checked by itself,
then the highest sequences of the blocks before it decide on its rest. The history is not read for it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.store.marks import NAMES_MAX
from spark_integration.merge.batch.runs.compiled_runs import IS_REPEAT
from spark_integration.merge.batch.sequences.sequence_blocks import PLACES_DDL, SUMMARY_DDL, find_repeats, summarise
from spark_integration.merge.batch.sequences.sequence_log import SEQUENCE

PLACE: Final = ["partition", "offset"]
"""The columns that identify a record of a history."""

BROADCAST_MAX: Final = 200_000
"""Highest number of places for a broadcast join, some 20 MB on each executor; above it, both sides are shuffled."""


def summaries(rows: DataFrame, marks: DataFrame | None) -> DataFrame:
    """Check each block by itself.

    Args:
        rows: the output of a merge.
        marks: partition, name and sequence of the marks before the history; None: there were none.

    Returns:
        For each block its highest sequence and where it came first, the lowest sequence of a record that was merged,
        the highest one of a duplicate that is none within the block, and whether there is nothing wrong within it.
    """
    summed = _blocks(rows).mapInArrow(summarise, SUMMARY_DDL)
    if marks is None:
        return summed
    none = F.lit(None).cast("bigint")
    before = marks.select(
        F.col("partition").cast("int").alias("partition"),
        F.lit(None).cast("binary").alias("key"),
        "name",
        F.lit(-1).cast("bigint").alias("block"),
        F.col("sequence").alias("raised"),
        F.lit(-1).cast("bigint").alias("raised_at"),
        none.alias("low"),
        none.alias("needs"),
        F.lit(True).alias("is_right"),
    )
    return before.unionByName(summed)


def wrong_blocks(summaries: DataFrame) -> DataFrame:
    """Return the blocks with a record that was treated otherwise than by a worker."""
    highest = F.coalesce("highest", F.lit(-1))
    is_wrong = ~F.col("is_right") | (F.col("low") <= highest) | (F.col("needs") > highest)
    return _with_highest(summaries).where(F.coalesce(is_wrong, F.lit(False)))


def repeats(rows: DataFrame, summaries: DataFrame) -> DataFrame:
    """Return partition and offset of the records that a worker would drop, given the rejections of a merge."""
    highest = _with_highest(summaries).where("key IS NOT NULL").select("partition", "key", "highest")
    return _blocks(rows, highest).mapInArrow(find_repeats, PLACES_DDL)


def marks_after(summaries: DataFrame) -> DataFrame:
    """Return the marks that a worker would have at the end: partition, name, sequence, and the offset that set it."""
    raised = (
        summaries.where("raised >= 0")
        .groupBy("partition", "name")
        .agg(
            F.max("raised").alias("sequence"),
            F.min_by("raised_at", F.struct(-F.col("raised"), F.col("raised_at"))).alias("offset"),
        )
    )
    # A worker does not remember more marks either.
    newest = F.row_number().over(Window.partitionBy("partition").orderBy(F.col("offset").desc(), "name"))
    return raised.select("*", newest.alias("rank")).where(F.col("rank") <= NAMES_MAX).drop("rank")


def marked(records: DataFrame, repeats: DataFrame, count: int) -> DataFrame:
    """Add a column `is_repeat`, true for the records at the `count` places in `repeats`.

    Duplicates are not left out: a worker rejects a record for its headers before it looks for duplicates.
    """
    if not count:
        return records.withColumn(IS_REPEAT, F.lit(None).cast("boolean"))
    places = repeats.select(*PLACE, F.lit(True).alias(IS_REPEAT))
    return records.join(F.broadcast(places) if count <= BROADCAST_MAX else places, PLACE, "left")


def _blocks(rows: DataFrame, highest: DataFrame | None = None) -> DataFrame:
    """The rows with sequences, those of a block together."""
    blocks = rows.where(F.col("topic") == SEQUENCE).select("partition", "key", "value")
    if highest is not None:
        blocks = blocks.join(highest, ["partition", "key"])
    return blocks.repartition("partition", "key").sortWithinPartitions("partition", "key")


def _with_highest(summaries: DataFrame) -> DataFrame:
    """Add a column with the highest sequence of the blocks before; null: there are none."""
    before = Window.partitionBy("partition", "name").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    return summaries.withColumn("highest", F.max("raised").over(before))
