"""Moves the merge of a topic from Spark back to its workers.

    spark ──claim──▶ to_workers ──return──▶ workers

| step | does | after a death |
|---|---|---|
| check | the fence, topics, settings and session; changes nothing | |
| claim | the phase `to_workers`: `run_merge` stops its query | the same command goes on |
| wait | waits until no process merges on Spark; a dead one leaves its group after a session timeout | as above |
| drain | repeats the last micro-batch, and runs one more without new input: the rest of the output, acks | as above |
| return | the workers' offsets, input positions, and the phase `workers`, in one transaction | nothing is left to do |
| verify | reads the offsets again | as above |

A takeover that has not reached the phase `spark` is given up: Spark has written nothing, so that no micro-batch is
repeated, and the workers go on where they stood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import ConfigurationError, Stop
from processor.wire.control import BACKFILL, SPARK, WORKERS
from spark_integration.foundation.options import client_properties, with_connection
from spark_integration.foundation.pyspark_private import jvm_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.moves.merge_query import Checkpoint, MergeQuery
from spark_integration.merge.moves.move import BEGINNING, TO_SPARK, TO_WORKERS, Move
from spark_integration.merge.moves.takeover import ignore_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from processor.wire.control import Fence
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import Settings
    from spark_integration.merge.moves.takeover import OnStep

log = structlog.stdlib.get_logger("sowstream.cutover")

STEPS: Final = ("check", "claim", "wait", "drain", "return", "verify")
"""The steps, in their order."""
WAIT_TIMEOUT_S: Final = 180.0
"""Longest wait for the query on Spark to stop."""
DRAIN_TIMEOUT_S: Final = 900.0
"""Longest time for the last micro-batches."""


def handback(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    options: Options | None = None,
    timeout_s: float = WAIT_TIMEOUT_S,
    lost_checkpoint: bool = False,
    on_step: OnStep | None = None,
) -> Fence:
    """Move the merge of a topic from Spark back to its workers; after a death at any step the same call goes on.

    The query need not be stopped: `run_merge` stops it. Workers that wait go on within seconds.

    Args:
        spark: a classic session with Spark's Kafka connector, which can read the checkpoint.
        topic: the family's name.
        config: the topic's settings, the same as the workers'.
        options: options of Spark's Kafka source.
        timeout_s: longest wait for the query.
        lost_checkpoint: give up a checkpoint that is gone for good, and with it Spark's position in the input: the
            workers hold the topic until `sowstream offsets adopt` sets their offsets.
        on_step: called with the name of each step as it begins: `STEPS`, and `done`.

    Returns:
        The fence, in the phase `workers`, with the offsets at which the workers begin; none with `lost_checkpoint`.

    Raises:
        ConfigurationError: settings, topics, session or checkpoint cannot be used, or another move is under way.
        Stop: the query has not stopped, Spark has failed, or Kafka refuses. The message has the next step.
    """
    jvm_of(spark, "handback")
    settings = topic_settings(topic, config, options=options)
    query = MergeQuery(spark, settings, config, with_connection(options, settings.kafka))
    on_step = on_step or ignore_step
    on_step("check")
    with Move(settings, client_properties(settings.kafka, options), "handback") as move:
        phase = move.fence.phase
        if phase == WORKERS:
            log.info("the workers merge this topic already", topic=topic)
            return move.fence
        if phase not in (TO_SPARK, BACKFILL, BEGINNING, SPARK, TO_WORKERS):
            raise ConfigurationError(
                f"{topic}: its SOW topic is half replaced (phase {phase}): let the backfill end, or run it again"
            )
        if phase in (TO_SPARK, BACKFILL):
            move.write(WORKERS)
            return move.fence
        # Not by its commits: a drain that died has removed the last one, perhaps the only one.
        is_lost = move.fence.has_begun and Checkpoint(query.spark, move.fence.checkpoint).planned is None
        if lost_checkpoint and not is_lost:
            raise ConfigurationError(
                f"{topic}: there is a checkpoint, {move.fence.checkpoint}, or Spark has merged nothing; leave out "
                "--lost-checkpoint"
            )
        if is_lost and not lost_checkpoint:
            raise _lost(query, move.fence)
        if move.fence.has_begun and not is_lost:
            query.check(move.family, takes_input=False)
        if phase != TO_WORKERS:
            on_step("claim")
            move.write(TO_WORKERS)
        on_step("wait")
        move.await_spark(timeout_s)
        if is_lost:
            # The input positions stay those of Spark, by which workers hold their partitions.
            on_step("return")
            move.write(WORKERS, offsets={})
            on_step("done")
            return move.fence
        on_step("drain")
        offsets = _drained(query, move.fence) if move.fence.has_begun else move.await_workers(timeout_s)
        on_step("return")
        move.write(WORKERS, offsets=offsets, moves_positions=True)
        on_step("verify")
        _verify(move)
        on_step("done")
        return move.fence


def _lost(query: MergeQuery, fence: Fence) -> ConfigurationError:
    topic = query.settings.name
    return ConfigurationError(
        f"{topic}: the checkpoint {fence.checkpoint} is gone, and with it the position of Spark in the input. Restore "
        "it, or make the directory available here; nothing was changed. If it is lost for good: `sowstream-spark "
        f"handback {topic} --lost-checkpoint`, then `sowstream offsets adopt {topic}` sets the offsets of the workers"
    )


def _drained(query: MergeQuery, fence: Fence) -> dict[int, int]:
    """Write the rest of the output; returns the next input offsets.

    The last micro-batch is repeated even if it is committed: only after a micro-batch of its own run does Spark begin
    one without input, which writes the acks. Each new number in the checkpoint also stops a query that was only thought
    dead. Nothing more expires: an update that was published in time may wait in Kafka. What is due then is left to the
    workers.
    """
    checkpoint, source = Checkpoint(query.spark, fence.checkpoint), query.settings.kafka_topic("publish")
    last = checkpoint.planned
    assert last is not None
    end = checkpoint.close_input()
    checkpoint.forget_commit(last)
    query.run_until(fence, last + 1, DRAIN_TIMEOUT_S, input_end=end)
    committed = checkpoint.committed
    assert committed is not None
    offsets = checkpoint.offsets(committed, source)
    assert offsets == checkpoint.offsets(last, source), "no input was read"
    return offsets


def _verify(move: Move) -> None:
    settings, fence = move.settings, move.fence
    committed = move.family.committed(settings.topic.partitions)
    # Workers that waited may have gone on by now.
    if behind := [number for number, offset in fence.offsets.items() if committed.get(number, -1) < offset]:
        raise Stop(
            f"{settings.name}: the group {move.family.group} stands at {committed}, and Spark has merged up to "
            f"{fence.offsets}, so partition {behind[0]} would be merged twice: somebody has set the group back"
        )
