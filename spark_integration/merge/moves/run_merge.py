"""Runs the merge of a topic on Spark for as long as the fence allows it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import ConfigurationError
from processor.installation.control_topic import ControlTopic
from processor.kafka.admin.admin import Admin
from processor.wire.control import SPARK, WORKERS, Fence, decode, decode_key
from spark_integration.foundation.options import client_properties, with_connection
from spark_integration.foundation.pyspark_private import jvm_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.moves.merge_query import Checkpoint, MergeQuery, refuse_failed
from spark_integration.merge.moves.move import fence_in, merge_group
from spark_integration.merge.moves.presence import SESSION_TIMEOUT_S, Presence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from processor.kafka.clients.log_reader import LogReader
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import Settings, TopicSettings

log = structlog.stdlib.get_logger("sowstream.cutover")

_LOOK_S: Final = 0.5
_READ_MAX: Final = 1_000  # Records of the control topic that are read in one look.
_GRACE_S: Final = 60.0  # Longest wait for the end of a micro-batch.


def run_merge(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    options: Options | None = None,
    trigger: str = "1 second",
    stop: threading.Event | None = None,
    once: bool = False,
    session_timeout_s: float = SESSION_TIMEOUT_S,
) -> bool:
    """Merge a topic on Spark, after `takeover`, until `handback` or `stop`; the query goes on in its checkpoint.

    Args:
        spark: a classic session with Spark's Kafka connector.
        topic: the family's name.
        config: the topic's settings, the same as the workers'.
        options: options of Spark's Kafka source, such as `maxOffsetsPerTrigger`.
        trigger: the interval of micro-batches.
        stop: ends the query after its micro-batch.
        once: process the input that exists now, and end; acks of the last micro-batch wait for the next call.
        session_timeout_s: time until a dead process counts as gone.

    Returns:
        True if it has ended by itself, false if `stop` has ended it.

    Raises:
        ConfigurationError: the workers merge this topic, or another process does on Spark.
        Stop: the query has failed.
    """
    jvm_of(spark, "run_merge")
    settings = topic_settings(topic, config, options=options)
    kafka = client_properties(settings.kafka, options)
    control = ControlTopic(kafka, Admin(kafka), prefix=settings.names.prefix)
    control.refuse_missing()
    stop = stop or threading.Event()
    presence = Presence(
        kafka,
        group=merge_group(settings),
        topic=control.topic,
        role=f"merge {topic}",
        session_timeout_s=session_timeout_s,
    )
    with presence:
        presence.refuse_others(f"merges {topic} on Spark already")
        # Only now: a handback raises the fence first, and then looks for members.
        entries = control.read_existing(settings.application_id)
        fence = fence_in(entries, settings)
        _refuse_phase(spark, topic, fence)
        following = control.follow(entries.end)
        query = MergeQuery(spark, settings, config, with_connection(options, settings.kafka)).start(
            fence, None if once else trigger
        )
        try:
            while not stop.wait(_LOOK_S) and _is_ours(following, settings, fence):
                refuse_failed(query, topic)
                if not query.isActive:
                    break
            has_ended = not (stop.is_set() and query.isActive)
        finally:
            _stop_after_batch(query)
            following.close()
        refuse_failed(query, topic)
    return has_ended


def _refuse_phase(spark: SparkSession, topic: str, fence: Fence) -> None:
    if fence.phase == WORKERS:
        raise ConfigurationError(
            f"{topic}: its workers merge it. `sowstream-spark takeover {topic}` moves the merge to Spark"
        )
    if fence.phase != SPARK:
        raise ConfigurationError(
            f"{topic}: a move is under way (phase {fence.phase}, by {fence.by}); let it end, or run its command again"
        )
    if Checkpoint(spark, fence.checkpoint).committed is None:
        raise ConfigurationError(
            f"{topic}: the checkpoint {fence.checkpoint} is gone, and with it the state of the merge; restore it, or "
            "make the directory available here"
        )


def _is_ours(following: LogReader, settings: TopicSettings, fence: Fence) -> bool:
    """Return whether the fence still has the phase `spark` and our checkpoint."""
    for message in following.read(_READ_MAX, 0.0).messages:
        key, value = decode_key(message.key()), message.value()
        if key is None or key.kind != "fence" or value is None:
            continue
        if (key.application_id, key.pipeline) != (settings.application_id, settings.name):
            continue
        newer = decode(Fence, value)
        if newer is None or (newer.phase, newer.checkpoint) != (SPARK, fence.checkpoint):
            log.info("the merge is moved; stopping", topic=settings.name, phase=newer and newer.phase)
            return False
    return True


def _stop_after_batch(query: StreamingQuery) -> None:
    """Stop a query between two micro-batches, if one ends soon: the next start repeats an interrupted one."""
    until_s, batch = time.monotonic() + _GRACE_S, _batch(query)
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until_s:
        if _batch(query) != batch:  # It has ended, and the next one began at once.
            break
        time.sleep(0.02)
    query.stop()


def _batch(query: StreamingQuery) -> int | None:
    """The number of the last micro-batch that has ended."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
