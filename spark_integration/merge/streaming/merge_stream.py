"""A Structured Streaming job that merges: it writes the SOW and delta topics of a family in place of workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Pipeline, check_settings, family_of
from processor.hosting.topic_check import log_warnings, problems_of
from spark_integration.merge.arrow_records import OUTGOING_DDL
from spark_integration.merge.streaming.chunks import CHUNK_DDL, CHUNKS_DDL, bundled, taken_apart
from spark_integration.merge.streaming.initial import initial_state
from spark_integration.merge.streaming.processor import MergeProcessor
from spark_integration.merge.streaming.stream_options import (
    has_start,
    kafka_options,
    read_options,
    write_options,
)
from spark_integration.merge.topic_family import TopicFamily
from spark_integration.options import Options, client_properties
from spark_integration.settings import Settings, TopicSettings, topic_settings

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_EARLIEST_OFFSET: Final = -2  # Spark's Kafka source takes it for the oldest record.
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def merge_stream(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    options: Options | None = None,
    initial: Literal["sow"] | None = "sow",
) -> DataStreamWriter:
    """Merge published records into the SOW topic as workers do, at least once and with the latency of micro-batches.

    Returns:
        A writer that is not started: give it `checkpointLocation` and a trigger, such as
        `.trigger(processingTime="1 second")`, and call `start`. The checkpoint holds the state of the job; without
        it, the job would merge the input again.

    Args:
        spark: a session with Spark's Kafka connector and RocksDB for its state.
        topic: the family's name; its topics must exist.
        config: the topic's settings, the same as the workers': see `topic_settings`.
        options: options of Spark's Kafka source, such as `maxOffsetsPerTrigger` (default 100,000); those that begin
            with `kafka.` apply to the sink too.
        initial: the start of a new checkpoint. `sow`: the records and marks of the topics, and the input from the
            offsets of the workers, unless `startingOffsets` is given. None: no records, and the input from its
            beginning; only for topics without records. An existing checkpoint continues where it ended.

    Raises:
        ConfigurationError: settings, options, session or topics cannot be used, or workers merge this topic.
        Stop: Kafka does not answer, or refuses.
    """
    if config is None:
        raise ConfigurationError(
            f"no config for {topic!r}: what merges must have the topic's settings; give config='sowstream.yaml', or "
            "config={} for a topic of plain JSON with its key in /id"
        )
    if initial not in ("sow", None):
        raise ConfigurationError(f"initial={initial!r}: say 'sow' (begin with what the SOW topic has) or None")
    _check_session(spark)
    settings = topic_settings(topic, config, options=options)
    source, sink = (say(topic, options, settings.names) for say in (read_options, write_options))
    with TopicFamily(settings, client_properties(settings.kafka, options)) as family:
        _check_topics(settings, family)
        if not has_start(options):
            source["startingOffsets"] = "earliest" if initial is None else _left_by_workers(settings, family)
    begin = None
    if initial is not None:
        begin = initial_state(spark, settings, kafka_options(options or {}))
    merged = _merged(spark, settings, source, begin).mapInArrow(taken_apart, OUTGOING_DDL)
    # One task writes a partition in the order of the rows, so no shuffle may follow the merge.
    return merged.writeStream.format("kafka").outputMode("append").options(**sink)


def _merged(
    spark: SparkSession, settings: TopicSettings, source: Mapping[str, str], begin: DataFrame | None
) -> DataFrame:
    """The output for the topics, in bundles."""
    published = (
        spark.readStream.format("kafka")
        .options(**source)
        .load()
        .selectExpr("key", "value", "headers", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms")
    )
    return (
        published.mapInArrow(bundled, CHUNKS_DDL)
        .groupBy("slot")
        .transformWithStateInPandas(
            MergeProcessor(settings),
            outputStructType=CHUNK_DDL,
            outputMode="append",
            timeMode="ProcessingTime",
            initialState=None if begin is None else begin.groupBy("slot"),
        )
    )


def _check_session(spark: SparkSession) -> None:
    """Refuse a session whose settings would lose state or order.

    Raises:
        ConfigurationError: a setting cannot be used; the message names it.
    """
    provider = spark.conf.get(_PROVIDER)
    if not (provider or "").endswith("RocksDBStateStoreProvider"):
        raise ConfigurationError(
            f"Spark would keep the records with {provider}, which cannot: "
            f"set {_PROVIDER}={_ROCKSDB} on the session before merge_stream"
        )
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise ConfigurationError(
            "spark.speculation is true: two tasks would write the same partition at once, and an older record could "
            "come to stand behind a newer one of its key; start the session without it"
        )


def _check_topics(settings: TopicSettings, family: TopicFamily) -> None:
    """Refuse settings and topics that cannot be used, and a family with running workers.

    Raises:
        ConfigurationError: the message names the remedy.
        Stop: Kafka does not answer, or refuses.
    """
    pipeline = Pipeline.of(DeltaMerge, settings.topic, name=settings.name, topic=settings.topic, names=settings.names)
    check_settings([pipeline], lambda _: settings.codec())
    if refused := log_warnings(problems_of(family.admin, family_of(pipeline)), "topic at risk"):
        raise ConfigurationError(f"topics that cannot be used:\n{refused}")
    family.refuse_members("both would write the same records")


def _left_by_workers(settings: TopicSettings, family: TopicFamily) -> str:
    """The workers' offsets of the input, as an option of Spark's source; the beginning where they have none.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    partitions = settings.topic.partitions
    committed = family.committed(partitions)
    return json.dumps(
        {family.source: {str(number): committed.get(number, _EARLIEST_OFFSET) for number in range(partitions)}}
    )
