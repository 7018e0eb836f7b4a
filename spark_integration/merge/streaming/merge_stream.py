"""A Structured Streaming job that merges: it writes the SOW and delta topics of a family in place of workers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Pipeline, check_settings, family_of
from processor.installation.topic_check import log_warnings, problems_of
from processor.topics.family import MESSAGE_MAX_BYTES
from spark_integration.foundation.arrow_records import OUTGOING_DDL
from spark_integration.foundation.options import (
    Options,
    client_properties,
    sink_options,
    source_options,
    with_connection,
)
from spark_integration.foundation.pyspark_private import refuse_without_state
from spark_integration.foundation.settings import Settings, TopicSettings, topic_settings
from spark_integration.merge.streaming.chunks import (
    CHUNKS_DDL,
    OUTPUT_DDL,
    RECORD_COLUMNS,
    bundled,
    initial_state,
    taken_apart,
)
from spark_integration.merge.streaming.merge_counts import observation, observed
from spark_integration.merge.streaming.processor import InputEnd, MergeProcessor
from spark_integration.merge.topic_family import TopicFamily

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_LARGEST: Final = "max.message.bytes"
_EARLIEST_OFFSET: Final = -2  # Spark's Kafka source takes it for the oldest record.
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

OFFSETS_PER_TRIGGER: Final = 100_000
"""Default of `maxOffsetsPerTrigger`: the limit of records in a micro-batch, which are in memory."""

_STARTS: Final = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp")

_REFUSED: Final = {
    "kafka.transactional.id": "Spark's sink has no transactions",
    "minoffsetspertrigger": "a record would expire while an update that was published in time waits to be read",
}


def merge_stream(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    options: Options | None = None,
    initial: Literal["sow"] | None = "sow",
    once: bool = False,
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
        once: true for the trigger `availableNow`, which reads the input of its start only: in a partition without new
            input, records that are due later than this call stay, as updates published in time may wait in Kafka.

    Raises:
        ConfigurationError: settings, options, session or topics cannot be used, workers merge this topic, or
            `sowstream-spark takeover` has moved its merge: then `run_merge` goes on in the checkpoint of that.
        Stop: Kafka does not answer, or refuses.
    """
    end = end_of_now() if once else None
    return merge_writer(spark, topic, config=config, options=options, initial=initial, is_moved=False, input_end=end)


def merge_writer(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    options: Options | None = None,
    initial: Literal["sow"] | None = "sow",
    is_moved: bool,
    takes_input: bool = True,
    input_end: InputEnd | None = None,
) -> DataStreamWriter:
    """Create the writer of `merge_stream`.

    Args:
        spark: see `merge_stream`, as for those that are not listed.
        topic: the family's name.
        config: the topic's settings.
        options: options of Spark's Kafka source.
        initial: the start of a new checkpoint.
        is_moved: whether the caller has raised the fence, and goes on in the checkpoint that it names.
        takes_input: whether the options let the query read new input.
        input_end: the last time that the query asks for the end of the input; None: each micro-batch asks.
    """
    if config is None:
        raise ConfigurationError(
            f"no config for {topic!r}: what merges must have the topic's settings; give config='sowstream.yaml', or "
            "config={} for a topic of plain JSON with its key in /id"
        )
    if initial not in ("sow", None):
        raise ConfigurationError(f"initial={initial!r}: say 'sow' (begin with what the SOW topic has) or None")
    settings = topic_settings(topic, config, options=options)
    connected = with_connection(options, settings.kafka)
    with TopicFamily(settings, client_properties(settings.kafka, options)) as family:
        source, sink = check_merge(spark, settings, connected, family, takes_input=takes_input)
        if not is_moved:
            family.refuse_fenced("it cannot be merged with a checkpoint of your own")
        family.refuse_members("both would write the same records")
        bytes_max, input_id = _largest_records(settings, family), family.admin.topic_id(family.source)
        if not has_start(options):
            source["startingOffsets"] = "earliest" if initial is None else _left_by_workers(settings, family)
    begin = None
    if initial is not None:
        begin = initial_state(spark, settings, kafka_options(connected))
    merged = _merged(spark, MergeProcessor(settings, bytes_max, input_id, input_end), source, begin)
    records = merged.observe(observation(topic), *observed()).mapInArrow(taken_apart, OUTGOING_DDL)
    # One task writes a partition in the order of the rows, so no shuffle may follow the merge.
    return records.writeStream.format("kafka").outputMode("append").options(**sink)


def end_of_now() -> InputEnd:
    """The end of a query that asks for it once, at its start, which is now or soon."""
    now_ms = int(time.time() * 1000)
    return InputEnd(now_ms, now_ms)


def check_merge(
    spark: SparkSession, settings: TopicSettings, options: Options, family: TopicFamily, *, takes_input: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Refuse a session, options, settings and topics that cannot be used.

    Returns:
        The options of the source, and those of the sink.

    Raises:
        ConfigurationError: the message names the remedy.
        Stop: Kafka does not answer, or refuses.
    """
    _check_session(spark)
    source, sink = (say(settings.family, options, settings.names) for say in (read_options, write_options))
    if takes_input and settings.queues:
        raise ConfigurationError(
            f"{settings.name} has the queue {settings.queues[0]!r}, which is filled in the transactions of workers; "
            f"merge the topic with its workers (`sowstream-spark handback {settings.name}`, if Spark merges it), or "
            "remove the queue from the settings"
        )
    _check_topics(settings, family)
    return source, sink


def _merged(
    spark: SparkSession, processor: MergeProcessor, source: Mapping[str, str], begin: DataFrame | None
) -> DataFrame:
    """The output for the topics in bundles, and the counters."""
    published = spark.readStream.format("kafka").options(**source).load().selectExpr(*RECORD_COLUMNS)
    return (
        published.mapInArrow(bundled, CHUNKS_DDL)
        .groupBy("slot")
        .transformWithStateInPandas(
            processor,
            outputStructType=OUTPUT_DDL,
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
    refuse_without_state(spark, "merge_stream")
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
    """Refuse settings and topics that cannot be used.

    Raises:
        ConfigurationError: the message names the remedy.
        Stop: Kafka does not answer, or refuses.
    """
    pipeline = Pipeline.of(DeltaMerge, settings.topic, name=settings.name, topic=settings.topic, names=settings.names)
    check_settings([pipeline], lambda _: settings.codec())
    if refused := log_warnings(problems_of(family.admin, family_of(pipeline)), "topic at risk"):
        raise ConfigurationError(f"topics that cannot be used:\n{refused}")


def _largest_records(settings: TopicSettings, family: TopicFamily) -> dict[str, int]:
    """The largest record that each output's topic accepts, in bytes, by role.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    topics = {settings.kafka_topic(role): role for role in ("sow", "delta", "publish")}
    configs = family.admin.topic_config(list(topics))
    return {
        topics[name]: min(int(config[_LARGEST]), MESSAGE_MAX_BYTES)
        for name, config in configs.items()
        if _LARGEST in config
    }


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


def read_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options of the source.

    Raises:
        ConfigurationError: see `source_options`.
    """
    checked = source_options(topic, "publish", options, names)
    if "maxoffsetspertrigger" not in {name.lower() for name in checked}:
        checked["maxOffsetsPerTrigger"] = str(OFFSETS_PER_TRIGGER)
    return checked


def write_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options of the sink: rows name their topic, keep their order, and are acknowledged by all replicas.

    Raises:
        ConfigurationError: an option would break a guarantee.
    """
    checked = sink_options(topic, "sow", options, names)
    for name in checked:
        if why := _REFUSED.get(name.lower()):
            raise ConfigurationError(f"option {name!r} cannot be given: {why}; leave it out")
    return kafka_options({name.lower(): value for name, value in checked.items()})


def kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """Select the options of the Kafka client."""
    return {name: value for name, value in options.items() if name.lower().startswith("kafka.")}


def has_start(options: Options | None) -> bool:
    """Return whether an option sets the start of the input."""
    return any(name.lower() in _STARTS for name in options or ())
