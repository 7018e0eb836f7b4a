"""Moves the merge of a topic from its workers to Spark.

    workers ──claim──▶ to_spark ──fence──▶ beginning ──verify──▶ spark
       ▲                  │                    │                   │
       │◀─ no worker left ┘                    └───── handback ────┤
       └───────────────────────────────────────────────────────────┘

| step | does | after a death |
|---|---|---|
| check | topics, settings, options, session and checkpoint; changes nothing | |
| claim | raises the fence: workers commit, leave the group and wait | the same command goes on; `handback` gives up |
| drain | waits until the group is empty and no transaction is open; gives up if that takes too long | as above |
| fence | notes the group's offsets, and writes them as the input positions of Spark, in one transaction | as above |
| begin | runs the first micro-batch, which loads records and marks from the topics and writes nothing | as above |
| verify | compares offsets and number of records; then the phase is `spark` | as above |

Spark may write from the phase `spark` on: then `run_merge` runs the query on the fence's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, Stop
from processor.wire.control import BACKFILL, REPLACING, SPARK, WORKERS
from spark_integration.foundation.options import client_properties, with_connection
from spark_integration.foundation.pyspark_private import jvm_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.base_state import begins_of_workers, latest, partition_marks
from spark_integration.merge.moves.merge_query import ONCE, Checkpoint, MergeQuery
from spark_integration.merge.moves.move import BEGINNING, TO_SPARK, TO_WORKERS, Move
from spark_integration.merge.streaming.buckets import SIZE, entries_in
from spark_integration.merge.streaming.merge_stream import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from processor.wire.control import Fence
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import Settings


def records_in_state(spark: SparkSession, checkpoint: str) -> int:
    """The number of records in the state after the last committed micro-batch."""
    reader = spark.read.format("statestore").option("path", checkpoint).option("stateVarName", "buckets")
    sizes = reader.load().where(F.col("user_map_key.name") == F.lit(SIZE)).select("user_map_value.value")
    return sum(entries_in(bytes(row)) for (row,) in sizes.collect())


log = structlog.stdlib.get_logger("sowstream.cutover")

STEPS: Final = ("check", "claim", "drain", "fence", "begin", "verify")
"""The steps, in their order."""
DRAIN_TIMEOUT_S: Final = 180.0
"""Longest wait for the workers: more than a transaction of a dead worker may stay open."""
BEGIN_TIMEOUT_S: Final = 3_600.0
"""Longest time for loading the records."""

OnStep = Callable[[str], None]
"""Called with the name of each step as it begins."""


def takeover(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    checkpoints: str,
    options: Options | None = None,
    timeout_s: float = DRAIN_TIMEOUT_S,
    on_step: OnStep | None = None,
) -> Fence:
    """Move the merge of a topic from its workers to Spark; after a death at any step the same call goes on.

    Workers need not be stopped: they leave by themselves, and wait. `run_merge` merges from then on; until it does,
    nothing merges the topic.

    Args:
        spark: a classic session with Spark's Kafka connector. `spark.sql.shuffle.partitions` is the parallelism of the
            query for good; more than the topic's partitions is of no use, and is lowered.
        topic: the family's name.
        config: the topic's settings, the same as the workers'.
        checkpoints: a directory in any file system that Spark knows; the query's checkpoint is
            `<checkpoints>/<topic>-<number of the move>`.
        options: options of Spark's Kafka source.
        timeout_s: longest wait for the workers; if they have not left by then, they go on.
        on_step: called with the name of each step as it begins: `STEPS`, and `done`.

    Returns:
        The fence, in the phase `spark`.

    Raises:
        ConfigurationError: settings, topics, session or checkpoint cannot be used, another move is under way, or the
            workers hold a partition.
        Stop: the workers have not left, Spark has failed, or Kafka refuses. The message has the next step.
    """
    jvm_of(spark, "takeover")
    settings = topic_settings(topic, config, options=options)
    own = with_connection(options, settings.kafka)
    query = MergeQuery(spark, settings, config, own)
    on_step = on_step or ignore_step
    on_step("check")
    with Move(settings, client_properties(settings.kafka, options), "takeover") as move:
        if move.fence.phase == SPARK:
            log.info("Spark merges this topic already", topic=topic, checkpoint=move.fence.checkpoint)
            return move.fence
        if move.fence.phase not in (WORKERS, TO_SPARK, BEGINNING):
            raise ConfigurationError(_refusal(topic, move.fence.phase))
        with _way_back(move):
            query.check(move.family)
        if move.fence.phase == WORKERS:
            _claim(query, move, checkpoints, on_step)
        is_claimed = move.fence.phase == TO_SPARK
        offsets = _drained(query, move, timeout_s, on_step) if is_claimed else move.await_workers(timeout_s)
        _fence(spark, move, offsets, timeout_s)
        on_step("begin")
        # Expirations would be written from the second micro-batch on: before that nothing is.
        with _way_back(move):
            query.run_until(move.fence, 0, BEGIN_TIMEOUT_S, ONCE)
        on_step("verify")
        _verify(query, move)
        move.write(SPARK)
        on_step("done")
        return move.fence


def ignore_step(step: str) -> None:
    """Do nothing at the beginning of a step."""


@contextmanager
def _way_back(move: Move) -> Iterator[None]:
    """Name the way back in an error that leaves the workers waiting.

    Raises:
        ConfigurationError: as in the block.
    """
    try:
        yield
    except ConfigurationError as error:
        if not move.fence.is_up:
            raise
        topic = move.settings.name
        raise ConfigurationError(
            f"{error}\nNothing merges {topic} meanwhile: mend this and run the same command again, or give up with "
            f"`sowstream-spark handback {topic}`"
        ) from error


def _claim(query: MergeQuery, move: Move, checkpoints: str, on_step: OnStep) -> None:
    number = move.fence.number + 1
    path = f"{checkpoints.rstrip('/')}/{move.settings.name}-{number}"
    if Checkpoint(query.spark, path).planned is not None:
        raise ConfigurationError(
            f"{path} has micro-batches already, of another cluster or a deleted control topic: their state would be "
            "taken for that of the workers. Name another directory, or remove it"
        )
    for role in ("publish", "sow", "delta", "mark", "dlq"):
        if (count := move.family.partitions(role)) != move.settings.topic.partitions:
            raise ConfigurationError(
                f"{move.settings.kafka_topic(role)} has {count} partitions, and the settings have "
                f"{move.settings.topic.partitions}; correct the settings"
            )
    _begins(query, move)
    on_step("claim")
    move.write(TO_SPARK, offsets={}, checkpoint=path, number=number)


def _drained(query: MergeQuery, move: Move, timeout_s: float, on_step: OnStep) -> dict[int, int]:
    """Wait for the workers, and return their offsets; if they do not leave, or would hold, nothing has changed."""
    try:
        on_step("drain")
        offsets = move.await_workers(timeout_s)
        begins = _begins(query, move)
        if lacking := {number: begin for number, begin in begins.items() if begin != offsets[number]}:
            # Kafka has deleted the group's offsets; the marks have the same.
            move.family.admin.set_offsets(move.family.group, move.family.source, lacking)
        on_step("fence")
    except BaseException:
        move.write(WORKERS)
        raise
    return begins


def _begins(query: MergeQuery, move: Move) -> dict[int, int]:
    """The input offset of each partition at which its workers would begin."""
    marks = latest(query.spark, query.settings, move.family, "mark", kafka_options(query.options))
    return begins_of_workers(query.settings, move.family, partition_marks(marks))


def _fence(spark: SparkSession, move: Move, offsets: dict[int, int], timeout_s: float) -> None:
    """Note the workers' offsets as those of Spark, until no worker has moved them meanwhile."""
    while (move.fence.phase, move.fence.offsets) != (BEGINNING, offsets):
        if Checkpoint(spark, move.fence.checkpoint).planned is not None:
            raise Stop(
                f"{move.settings.name}: a worker that does not heed the fence has merged up to {offsets}, and Spark's "
                f"state is of {move.fence.offsets}. Stop it, then `sowstream-spark handback {move.settings.name}`, and "
                "take over again"
            )
        move.write(BEGINNING, offsets=offsets, moves_positions=True)
        # Such a worker may have begun just before that, and merged some more.
        offsets = move.await_workers(timeout_s)


def _verify(query: MergeQuery, move: Move) -> None:
    """Compare Spark's state with the topics, before it may write.

    Raises:
        Stop: they differ.
    """
    fence, settings = move.fence, query.settings
    begun = Checkpoint(query.spark, fence.checkpoint).offsets(0, settings.kafka_topic("publish"))
    offsets = move.await_workers(0)
    if not fence.offsets == begun == offsets:
        raise Stop(
            f"{settings.name}: the workers stood at {offsets}, the fence at {fence.offsets}, and Spark begins at "
            f"{begun}. A worker that does not heed the fence runs, or the group's offsets were set: stop it, then "
            f"`sowstream-spark handback {settings.name}`"
        )
    options = kafka_options(query.options)
    on_topic = latest(query.spark, settings, move.family, "sow", options).where("value IS NOT NULL").count()
    if (in_state := records_in_state(query.spark, fence.checkpoint)) != on_topic:
        raise Stop(
            f"{settings.name}: the SOW topic has {on_topic} records, and Spark's state {in_state}. Give up with "
            f"`sowstream-spark handback {settings.name}`"
        )


def _refusal(topic: str, phase: str) -> str:
    if phase == TO_WORKERS:
        return f"{topic}: a handback is under way; let it end, or run `sowstream-spark handback {topic}` again"
    if phase in (BACKFILL, REPLACING):
        return f"{topic}: a backfill is under way; let it end, or run `sowstream-spark backfill {topic}` again"
    return f"{topic}: the fence has the phase {phase!r}, which this version does not know; use a newer one"
