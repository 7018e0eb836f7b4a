"""Makes the SOW topic what an archive of its publish topic says, with the rest of that topic behind it.

    archive ─▶ + the publish topic from its end ─▶ merge_batch ─▶ compare with the SOW topic ─▶ hand_over

    workers ──claim──▶ backfill ──merge──▶ replacing ──hand over──▶ workers

In the phase `backfill` nothing has changed, and an error gives up. In the phase `replacing` the SOW topic may be half
written: workers wait until the same call has been made again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import StorageLevel

from processor.errors import ConfigurationError, Stop
from processor.wire.control import BACKFILL, REPLACING, WORKERS
from spark_integration.foundation.options import client_properties, with_connection
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.base_state import latest
from spark_integration.merge.batch.handover import replace_records
from spark_integration.merge.batch.merge_batch import merge_batch
from spark_integration.merge.moves.archived import archived, before, ends_at, history_to
from spark_integration.merge.moves.differences import SAME, Difference, compared, counts_by_kind, first_rows
from spark_integration.merge.moves.move import Move, current_fence
from spark_integration.merge.moves.takeover import DRAIN_TIMEOUT_S
from spark_integration.merge.topic_family import TopicFamily

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from processor.wire.control import Fence
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import Settings, TopicSettings
    from spark_integration.merge.batch.deduplicate import Keyless
    from spark_integration.merge.batch.result import Merged

EXAMPLES_MAX: Final = 10
"""Number of differences in a report."""


class BackfillReport(NamedTuple):
    """The changes of a backfill, made or not."""

    topic: str
    """The family's name."""
    is_new: bool
    """True if the family was empty: no records, and no offsets of workers."""
    is_dry: bool
    """True if nothing was written."""
    changes: Mapping[str, int]
    """The number of keys by change: `insert`, `update`, `delete`, `same`."""
    examples: list[Difference]
    """The first changes, by partition and key."""
    merged: Counter[str]
    """The counters of the merge: see `Merged`."""
    begins: Mapping[int, int]
    """The first offset of each partition of the history."""
    ends: Mapping[int, int]
    """The offset after the last record of each partition of the history."""
    cut: Mapping[int, int]
    """The offsets at which the workers begin; later than `ends` where `as_of` discards input that was merged."""

    def __str__(self) -> str:
        """The report for people."""
        numbers = ", ".join(f"{self.changes.get(kind, 0):,} {kind}" for kind in ("insert", "update", "delete", SAME))
        discarded = sum(self.cut.values()) - sum(self.ends.values())
        names = "records", "rejected", "duplicate", "keyless", "foreign"
        counts = {name: self.merged[name] for name in names}
        state = (" (empty)" if self.is_new else "") + (", nothing was written" if self.is_dry else "")
        lines = [
            f"{self.topic}{state}: {numbers}",
            f"  history: offsets {shown(self.begins)} to {shown(self.ends)}",
            "  merged: {records:,} records, {rejected:,} of them rejected, {duplicate:,} repeated".format(**counts),
            "  left out: {keyless:,} without a key, {foreign:,} outside of their key's partition".format(**counts),
            f"  workers begin at {shown(self.cut)}",
        ]
        if discarded:
            lines.append(f"  {discarded:,} offsets after the time of --as-of were merged before, and are undone")
        return "\n".join([*lines, *(f"  {each}" for each in self.examples)])


def backfill(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    archive: str,
    data_format: str = "parquet",
    options: Options | None = None,
    as_of: datetime | None = None,
    dry_run: bool = False,
    keyless: Keyless = "error",
    allow_partial: bool = False,
    timeout_s: float = DRAIN_TIMEOUT_S,
) -> BackfillReport:
    """Make the SOW topic the merge of an archive and the rest of the publish topic; workers wait meanwhile.

    Records that differ are written with higher versions, surplus ones are deleted, and subscribers get a delta for
    each. The workers go on behind the history.

    Args:
        spark: a session with Spark's Kafka connector.
        topic: the family's name.
        config: the topic's settings, the same as the workers'.
        archive: the directory of the archive of the publish topic; see `spark_integration.merge.moves.archived`.
        data_format: its format, as Spark's readers call it.
        options: options of Spark's Kafka source.
        as_of: merge only records published before this time. In an empty family, the workers merge the later ones; else
            the later ones that workers have merged are undone. A record that a worker has forwarded has the time of
            its copy.
        dry_run: write nothing, and let the workers run.
        keyless: the treatment of records that a worker forwards: see `merge_batch`. Offsets do not tell whether one
            has: a hand-over writes them, too.
        allow_partial: accept a history that begins behind the first record of a partition, in a family with records:
            those that were merged from the records before, and from none since, are deleted. Also accept that the
            archive ends before an empty partition does: the offsets between may have been transaction markers.
        timeout_s: longest wait for the workers.

    Raises:
        ConfigurationError: settings or archive cannot be used, the history is partial, or a move is under way; nothing
            was changed.
        Stop: workers have not left, or Kafka refuses; the message has the next step.
    """
    settings = topic_settings(topic, config, options=options)
    if as_of is not None and (as_of.utcoffset() is None or as_of.timestamp() > time.time()):
        raise ConfigurationError(f"as_of={as_of.isoformat()}: give a time of the past, with its zone")
    kafka, own = client_properties(settings.kafka, options), with_connection(options, settings.kafka)
    job = _Backfill(spark, settings, own, archive, data_format, as_of, keyless)
    if dry_run:
        with TopicFamily(settings, kafka) as family:
            plan = job.plan(config, family, current_fence(topic, config, own), accept_unknown=True)
            with plan.merged:
                return job.report(plan, is_dry=True)
    with Move(settings, kafka, "backfill") as move:
        if move.fence.phase not in (WORKERS, BACKFILL, REPLACING):
            raise ConfigurationError(
                f"{topic}: Spark merges it, or a move is under way (phase {move.fence.phase}): "
                f"`sowstream-spark handback {topic}` first"
            )
        if move.fence.phase == WORKERS:
            move.write(BACKFILL, offsets={})
        return _replace(job, move, config, timeout_s, allow_partial=allow_partial)


def _replace(job: _Backfill, move: Move, config: Settings, timeout_s: float, *, allow_partial: bool) -> BackfillReport:
    """Write the records while the workers wait."""
    was_replacing = move.fence.phase == REPLACING
    try:
        move.await_workers(timeout_s)
        plan = job.plan(config, move.family, move.fence, accept_unknown=allow_partial)
        if not (allow_partial or was_replacing):
            _refuse_partial(plan, job.settings)
    except BaseException:
        if not was_replacing:
            move.write(WORKERS)
        raise
    with plan.merged:
        report = job.report(plan, is_dry=False)
        # The SOW topic does not show any more that it was empty.
        move.write(REPLACING, offsets=plan.cut if plan.is_new else {})
        try:
            # Also for an empty family: its subscribers get an insert for each record.
            replace_records(plan.merged, options=job.options, cut=plan.cut)
        except ConfigurationError:
            if not was_replacing:  # Nothing was written.
                move.write(WORKERS, offsets={})
            raise
        move.write(WORKERS, offsets=plan.cut, moves_positions=True)
    return report


def _refuse_partial(plan: _Plan, settings: TopicSettings) -> None:
    """Make sure that the history of a family with records begins with the first record of each partition.

    Raises:
        ConfigurationError: it does not.
    """
    late = {partition: begin for partition, begin in plan.begins.items() if begin > 0}
    if late and not plan.is_new:
        partition = min(late)
        plan.merged.unpersist()
        raise ConfigurationError(
            f"the history of {settings.kafka_topic('publish')} begins at offset {late[partition]} in partition "
            f"{partition}: records that were merged from before would be deleted. Name an archive from the first "
            "record on. If there was none before, or they are to go: --allow-partial, after a look at --dry-run"
        )


class _Plan(NamedTuple):
    """A backfill before it is written."""

    is_new: bool
    merged: Merged
    there: DataFrame
    begins: Mapping[int, int]
    ends: Mapping[int, int]
    cut: Mapping[int, int]


class _Backfill(NamedTuple):
    """The arguments of a backfill."""

    spark: SparkSession
    settings: TopicSettings
    options: Options
    archive: str
    data_format: str
    as_of: datetime | None
    keyless: Keyless

    def plan(self, config: Settings, family: TopicFamily, fence: Fence, *, accept_unknown: bool) -> _Plan:
        """Merge the history.

        Args:
            config: the settings as the caller gave them.
            family: the topics.
            fence: the fence; in the phase `replacing`, an earlier call may have written a part of the records.
            accept_unknown: see `history_to`.
        """
        spark, settings, partitions = self.spark, self.settings, self.settings.topic.partitions
        committed = family.committed(partitions)
        sow = family.bounds("sow", partitions)
        is_new = bool(fence.offsets) if fence.phase == REPLACING else sow.begins == sow.ends and not committed
        oldest, last = family.bounds("publish", partitions)
        # The input that is to be in the SOW topic, if no time was given: of workers that never ran, all of it.
        stood = oldest | committed if committed else last
        rows = archived(spark, self.archive, settings, "publish", self.data_format)
        history = history_to(
            rows, settings, family, "publish", stood, self.options, spark, accept_unknown=accept_unknown
        )
        ends = stood
        if self.as_of is not None:
            ends = ends_at(history.rows, stood, round(self.as_of.timestamp() * 1000))
        merged = merge_batch(
            spark,
            settings.name,
            config=config,
            history=before(history.rows, ends),
            as_of=self.as_of,
            keyless=self.keyless,
        )
        return _Plan(
            is_new,
            merged,
            latest(spark, settings, family, "sow", self.options),
            history.begins,
            ends,
            ends if is_new else stood,
        )

    def report(self, plan: _Plan, *, is_dry: bool) -> BackfillReport:
        """Compare the merged records with those of the SOW topic."""
        rows = compared(plan.there, plan.merged.records).persist(StorageLevel.DISK_ONLY)
        try:
            changes, examples = counts_by_kind(rows), first_rows(rows.where(f"kind != '{SAME}'"), EXAMPLES_MAX)
        finally:
            rows.unpersist()
        return BackfillReport(
            topic=self.settings.name,
            is_new=plan.is_new,
            is_dry=is_dry,
            changes=changes,
            examples=examples,
            merged=plan.merged.counts,
            begins=plan.begins,
            ends=plan.ends,
            cut=plan.cut,
        )


def shown(offsets: Mapping[int, int]) -> str:
    """Offsets as text: `0: 12, 1: 15`."""
    if not offsets:
        raise Stop("the topic has no partitions")
    return ", ".join(f"{partition}: {offset}" for partition, offset in sorted(offsets.items()))
