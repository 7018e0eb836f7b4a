"""Checks that a merge has treated exactly those records as duplicates that a worker would drop.

A worker compares the sequence of a record with the mark of its client in the partition
(`processor.builtin.delta_merge.deduplication`). The tasks that merged have kept the sequences of all records
(`sequence_log`), in blocks: one client of one partition and about a million offsets. The blocks of a client are applied
to its mark one after another, in the order of their offsets. The history is not read for it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.store.marks import NAMES_MAX, ONE_SHOT_NAMES_MAX
from spark_integration.merge.batch.runs.compiled_runs import DENIAL, IS_REPEAT
from spark_integration.merge.batch.sequences.sequence_blocks import PLACES_DDL, SUMMARY_DDL, Settling
from spark_integration.merge.batch.sequences.sequence_log import NUMBER_BYTES, SEQUENCE

PLACE: Final = ["partition", "offset"]
"""The columns that identify a record of a history."""

BROADCAST_MAX: Final = 200_000
"""Highest number of places for a broadcast join, some 20 MB on each executor; above it, both sides are shuffled."""

_BEFORE: Final = "before"
"""Value of column `topic` in a row with the mark of a client before the history; it is sorted before its blocks."""


def summaries(rows: DataFrame, marks: DataFrame | None, jump_max: int) -> DataFrame:
    """Apply the sequences of each client.

    Args:
        rows: the output of a merge.
        marks: partition, name and mark before the history; None: there were none.
        jump_max: the topic's `sequence_jump_max`.

    Returns:
        For each client `partition`, `name`, its `mark`, whether its name is for one occasion (`is_one_shot`), the
        `offset` of the record that set the mark (-1: none), and whether all of its records were treated as by a worker
        (`is_right`).
    """
    return _blocks(rows, marks).mapInArrow(Settling(jump_max).summarise, SUMMARY_DDL)


def wrong_clients(summaries: DataFrame) -> DataFrame:
    """Return the clients with a record that was treated otherwise than by a worker."""
    return summaries.where(~F.col("is_right"))


def repeats(rows: DataFrame, marks: DataFrame | None, jump_max: int) -> DataFrame:
    """Return the records that a worker would drop or reject for their sequence, given the rejections of a merge.

    Args:
        rows: the output of that merge.
        marks: as for `summaries`.
        jump_max: as for `summaries`.

    Returns:
        `partition`, `offset`, and `denial`: the detail of a rejection, null for a duplicate.
    """
    return _blocks(rows, marks).mapInArrow(Settling(jump_max).find_repeats, PLACES_DDL)


def marks_after(summaries: DataFrame) -> DataFrame:
    """Return the marks that a worker would have at the end: partition, name, mark, and the offset that set it."""
    # A worker does not remember more marks either.
    kind = Window.partitionBy("partition", "is_one_shot")
    newest = F.row_number().over(kind.orderBy(F.col("offset").desc(), "name"))
    names_max = F.when(F.col("is_one_shot"), ONE_SHOT_NAMES_MAX).otherwise(NAMES_MAX)
    ranked = summaries.where(F.col("mark") != F.lit(b"-1")).select(
        "partition", "name", "mark", "offset", (newest <= names_max).alias("is_kept")
    )
    return ranked.where("is_kept").drop("is_kept")


def marked(records: DataFrame, repeats: DataFrame, count: int) -> DataFrame:
    """Add the columns `is_repeat` and `denial` for the records at the `count` places in `repeats`.

    Duplicates are not left out: a worker rejects a record for its headers before it looks for duplicates.
    """
    if not count:
        return records.withColumn(IS_REPEAT, F.lit(None).cast("boolean"))
    places = repeats.select(*PLACE, F.col("denial").isNull().alias(IS_REPEAT), F.col("denial").alias(DENIAL))
    return records.join(F.broadcast(places) if count <= BROADCAST_MAX else places, PLACE, "left")


def _blocks(rows: DataFrame, marks: DataFrame | None) -> DataFrame:
    """The rows with sequences, those of a client together, behind the row with its mark before the history."""
    blocks = rows.where(F.col("topic") == SEQUENCE).select("topic", "partition", "key", "value")
    if marks is not None:
        before = marks.select(
            F.lit(_BEFORE).alias("topic"),
            F.col("partition").cast("int").alias("partition"),
            F.concat(F.lit(bytes(NUMBER_BYTES)), "name").alias("key"),
            F.col("mark").alias("value"),
        )
        blocks = blocks.unionByName(before)
    named = blocks.withColumn("name", F.expr(f"substring(key, {NUMBER_BYTES + 1})"))
    return named.repartition("partition", "name").sortWithinPartitions("partition", "name", "topic", "key").drop("name")
