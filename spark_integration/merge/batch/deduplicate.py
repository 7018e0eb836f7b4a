"""Merges a history without duplicates; repeats the merge if the tasks took others for duplicates than a worker does.

A worker compares the sequence of a record with the mark of its client in the order of the input. A merge by keys
guesses the marks, and the sequences of all records are checked against the true ones when its tasks are done.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, Stop
from processor.store.marks import NAMES_MAX, ONE_SHOT_NAMES_MAX
from spark_integration.foundation.arrow_records import OUTGOING_DDL, RECORDS_DDL
from spark_integration.foundation.pyspark_private import rows_of_plan
from spark_integration.merge.batch.fold import BY_FILTER, COUNT, FOREIGN, KEYLESS, SEQUENCED
from spark_integration.merge.batch.keyless import Keyed
from spark_integration.merge.batch.runs.compiled_runs import DENIAL, IS_REPEAT
from spark_integration.merge.batch.runs.sequence_log import NUMBER_BYTES, SEQUENCE
from spark_integration.merge.batch.sequence_blocks import PLACES_DDL, SUMMARY_DDL, Settling

if TYPE_CHECKING:
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.batch.base_state import Base
    from spark_integration.merge.batch.fold import Fold


def shuffled_once(records: DataFrame) -> DataFrame:
    """Return the rows of a DataFrame behind a shuffle; every query of the result reads the same shuffle files.

    The shuffle runs in this call. Its files stay on the executors' disks as long as the result is used; those of a lost
    executor are computed again from the history. PySpark has no public way to keep them: `persist` and
    `localCheckpoint` would write all rows another time.

    Args:
        records: the last step is a `repartition`.

    Returns:
        The rows; under Spark Connect the argument, whose queries each read the history.
    """
    return rows_of_plan(records)


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


Keyless: TypeAlias = Literal["error", "skip", "merge"]
"""The treatment of records without a Kafka key."""

_ROUNDS_MAX: Final = 20
_PLACE: Final = "place"
"""The column by which the records of a task are sorted first: partition and a hash of the key, in 64 bits."""
_HASH_BITS: Final = 40


class MergePlan(NamedTuple):
    """The input and the settings of a merge."""

    settings: TopicSettings
    """The settings of the topic."""
    records: DataFrame
    """The input, `RECORDS_DDL`."""
    base: Base | None
    """The records and marks before the merge; None without a base."""
    fold: Fold
    """The merge of one task."""
    keyless: Keyless
    """The treatment of records without a key."""
    partitions: int | None
    """The number of tasks; None: `spark.sql.shuffle.partitions`."""


class Deduplicated(NamedTuple):
    """The result of a merge without duplicates."""

    rows: DataFrame
    """All output rows, `OUTGOING_DDL`, persisted."""
    marks: DataFrame | None
    """The marks, from `marks_after`; None where no record has a sequence."""
    counts: Counter[str]
    """The counters of the tasks."""
    kept: list[DataFrame]
    """The persisted DataFrames."""


def deduplicate(plan: MergePlan) -> Deduplicated:
    """Merge a history without its duplicates.

    The history is read once, and shuffled to the tasks that merge. They treat as duplicates the records that repeat a
    sequence within their key; `sequence_check` then compares them with a worker's. Only if these are others, as where a
    publisher began to count from 1 again, or used a refused number again, the shuffled records are merged once more,
    with the right ones marked. Another set of duplicates may have other rejections, so this is repeated until nothing
    changes. Each round corrects at least the first record that was treated wrongly, so the loop ends.

    Raises:
        ConfigurationError: records have no key.
        Stop: the set still changes after 20 rounds, or a worker would stop.
    """
    before = None if plan.base is None else plan.base.marks
    jump_max = plan.settings.topic.sequence_jump_max
    kept: list[DataFrame] = []
    records = shuffled_once(_shuffled(plan, _input(plan)))
    given, has_denials = records, False
    duplicates: DataFrame | None = None
    try:
        for _ in range(_ROUNDS_MAX):
            rows, counts = _folded(plan, given, kept)
            if not counts[SEQUENCED] and before is None:
                return Deduplicated(rows, None, counts, kept)
            # Not persisted: Spark's plans for that cost more than the summaries of a few blocks twice.
            summed = summaries(rows, before, jump_max)
            are_right = wrong_clients(summed).isEmpty()
            if are_right and not has_denials:
                return Deduplicated(rows, marks_after(summed), counts, kept)
            former, duplicates = duplicates, _keep(repeats(rows, before, jump_max), kept)
            if are_right and former is not None and duplicates.exceptAll(former).isEmpty():
                return Deduplicated(rows, marks_after(summed), counts, kept)
            count = duplicates.count()
            has_denials = not duplicates.where(F.col(DENIAL).isNotNull()).isEmpty()
            given = marked(records, duplicates, count)
            if count > BROADCAST_MAX:
                given = _shuffled(plan, given)
            _drop(rows, kept)
        raise Stop(
            f"{plan.settings.name}: after {_ROUNDS_MAX} rounds it is still not settled which records repeat others: "
            "records are rejected whose numbers are then used again, time after time. Let a worker merge this history"
        )
    except BaseException:
        _forget(kept)
        raise


def _input(plan: MergePlan) -> DataFrame:
    """The records to merge, those of the base among them."""
    records = _with_keys(plan)
    return records if plan.base is None else plan.base.records.unionByName(records, allowMissingColumns=True)


def _shuffled(plan: MergePlan, records: DataFrame) -> DataFrame:
    """Bring the records of each key to one task."""
    return records.repartition(*(() if plan.partitions is None else (plan.partitions,)), "partition", "key")


def _sorted(records: DataFrame) -> DataFrame:
    """Sort the records of each task by partition, key and offset.

    The merge does not need the order of the keys, but with it needs little memory. Spark compares the first 64 bits of
    the first column without looking at a row, so these hold as much of partition and key as they can.
    """
    key_hash = F.xxhash64("key").bitwiseAND(F.lit((1 << _HASH_BITS) - 1))
    is_keyless = F.col("key").isNull()
    place = F.shiftleft(F.col("partition").cast("bigint"), _HASH_BITS) + F.when(is_keyless, 0).otherwise(key_hash)
    return records.withColumn(_PLACE, place).sortWithinPartitions(_PLACE, "key", "offset")


def _folded(plan: MergePlan, records: DataFrame, kept: list[DataFrame]) -> tuple[DataFrame, Counter[str]]:
    """Merge the records once: the persisted output rows and the counters."""
    rows = _keep(_sorted(records).mapInArrow(plan.fold, OUTGOING_DDL), kept)
    number = F.col("value").cast("string").cast("bigint")
    counted = rows.where(F.col("topic") == COUNT).groupBy("key").agg(F.sum(number)).collect()
    counts = Counter({bytes(name).decode(): total for name, total in counted})
    if by_filter := counts.pop(BY_FILTER, 0):
        raise ConfigurationError(
            f"{plan.settings.name}: the history has {by_filter} deletes by filter. What each of them deletes hangs on "
            "every record of its partition at its place in the log, and this merge takes the keys one by one: begin "
            "behind the last of them, with the SOW topic of that time as `base`, or let workers merge this history"
        )
    if counts[KEYLESS] and plan.keyless == "error":
        raise ConfigurationError(
            f"{plan.settings.name}: {counts[KEYLESS]} records have no Kafka key. If workers have read this history, "
            "they sent them again with the key in their body: keyless='skip' leaves them out. If none has: "
            "keyless='merge' merges them behind all others of their key, where a worker's copies would be"
        )
    if counts[FOREIGN] and plan.keyless == "error":
        raise ConfigurationError(
            f"{plan.settings.name}: {counts[FOREIGN]} records came to another partition than their key's own: a "
            "producer does not partition by murmur2. If workers have read this history, they forwarded them: "
            "keyless='skip' leaves them out. If none has: keyless='merge' merges them behind all others of their key, "
            "where a worker's copies would be"
        )
    return rows, counts


def _with_keys(plan: MergePlan) -> DataFrame:
    """The records; with `keyless="merge"`, those that a worker would forward get their own key and partition."""
    if plan.keyless != "merge":
        return plan.records
    partitions = plan.fold.partitions if plan.settings.topic.foreign_partition == "move" else None
    keyed = Keyed(plan.settings, partitions)
    if partitions is None:
        own = plan.records.where("key IS NULL").mapInArrow(keyed, RECORDS_DDL)
        return plan.records.where("key IS NOT NULL").unionByName(own)
    if plan.base is None:
        return plan.records.mapInArrow(keyed, RECORDS_DDL)
    # A key that has a record stays where the record is.
    base_keys = plan.base.records.select("partition", "key")
    others = plan.records.join(base_keys, ["partition", "key"], "left_anti").select(plan.records.columns)
    stay = plan.records.join(base_keys, ["partition", "key"], "left_semi").select(plan.records.columns)
    return stay.unionByName(others.mapInArrow(keyed, RECORDS_DDL))


def _keep(frame: DataFrame, kept: list[DataFrame]) -> DataFrame:
    """Persist a DataFrame on the executors' disks, so that it is computed once."""
    kept.append(frame.persist(StorageLevel.DISK_ONLY))
    return frame


def _drop(frame: DataFrame, kept: list[DataFrame]) -> None:
    frame.unpersist()
    kept[:] = [other for other in kept if other is not frame]


def _forget(kept: list[DataFrame]) -> None:
    while kept:
        kept.pop().unpersist()
