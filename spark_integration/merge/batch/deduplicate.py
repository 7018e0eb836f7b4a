"""Merges a history without duplicates; repeats the merge if rejected records change the set of duplicates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, Stop
from processor.wire import columns as names
from spark_integration.merge.arrow_records import OUTGOING_DDL, RECORDS_DDL
from spark_integration.merge.batch.duplicates import PLACE, has_sequence, marked, marks_after, repeats, sequences
from spark_integration.merge.batch.fold import BY_FILTER, COUNT, FOREIGN, KEYLESS, REJECTED, SEQUENCED
from spark_integration.merge.batch.keyless import Keyed
from spark_integration.reading.metadata_columns import header_text

if TYPE_CHECKING:
    from spark_integration.merge.batch.base import Base
    from spark_integration.merge.batch.fold import Fold
    from spark_integration.settings import TopicSettings

Keyless: TypeAlias = Literal["error", "skip", "merge"]
"""The treatment of records without a Kafka key."""

_ROUNDS_MAX: Final = 20
_PEEK_RECORDS: Final = 1_000
"""Number of records that are searched for sequences before the merge."""


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

    A rejected record does not raise its client's mark, but rejections are only known after the merge. So duplicates are
    first searched as if no record was rejected, then without the rejected ones; if the two sets differ, the records are
    merged again. Each round corrects at least the first record that was judged wrongly, so the loop ends.

    Raises:
        ConfigurationError: records have no key.
        Stop: the set still changes after 20 rounds, or a worker would stop.
    """
    records = _with_keys(plan)
    before = None if plan.base is None else plan.base.marks
    kept: list[DataFrame] = []
    try:
        if before is None and not _peek(records):
            rows, counts = _folded(plan, records, kept)
            # The peek reads few records: if others had sequences after all, only time is lost.
            if not counts[SEQUENCED]:
                return Deduplicated(rows, None, counts, kept)
            _forget(kept)
        sequenced = _keep(sequences(records, plan.settings), kept)
        duplicates = _keep(repeats(sequenced, None, before), kept)
        for _ in range(_ROUNDS_MAX):
            count = duplicates.count()
            rows, counts = _folded(plan, marked(records, duplicates, count) if count else records, kept)
            rejected = _places(rows, plan.settings) if _any_rejected(counts) else None
            again = _keep(repeats(sequenced, rejected, before), kept)
            if rejected is None or _are_same(duplicates, again):
                return Deduplicated(rows, marks_after(sequenced, rejected, before), counts, kept)
            _drop(rows, kept)
            duplicates = again
        raise Stop(
            f"{plan.settings.name}: after {_ROUNDS_MAX} rounds it is still not settled which records repeat others: "
            "records are rejected whose numbers are then used again, time after time. Let a worker merge this history"
        )
    except BaseException:
        _forget(kept)
        raise


def _folded(plan: MergePlan, records: DataFrame, kept: list[DataFrame]) -> tuple[DataFrame, Counter[str]]:
    """Merge the records once: the persisted output rows and the counters."""
    if plan.base is not None:
        records = plan.base.records.unionByName(records, allowMissingColumns=True)
    parted = records.repartition(*(() if plan.partitions is None else (plan.partitions,)), "partition", "key")
    # The merge does not need the order of the keys, but with it needs little memory.
    sorted_ = parted.sortWithinPartitions("partition", "key", "offset")
    rows = _keep(sorted_.mapInArrow(plan.fold, OUTGOING_DDL), kept)
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


def _peek(records: DataFrame) -> bool:
    """Whether one of the first records has a header `sequence`."""
    return not records.select("headers").limit(_PEEK_RECORDS).where(has_sequence()).isEmpty()


def _places(rows: DataFrame, settings: TopicSettings) -> DataFrame:
    """The partitions and offsets of rejected records, from their headers `source`."""
    begin = len(settings.kafka_topic("publish")) + len("/") + 1
    place = F.split(F.substr(header_text(names.SOURCE), F.lit(begin)), "/")
    return rows.where(F.col("topic") == "dlq").select("partition", place[1].cast("bigint").alias("offset"))


def _are_same(one: DataFrame, other: DataFrame) -> bool:
    both = one.select(*PLACE, F.lit(1).alias("side")).unionByName(other.select(*PLACE, F.lit(-1).alias("side")))
    return both.groupBy(*PLACE).agg(F.sum("side").alias("more")).where("more <> 0").isEmpty()


def _any_rejected(counts: Counter[str]) -> bool:
    return any(name.startswith(REJECTED) for name in counts)


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
