"""Reads a SOW topic as a table: the latest record of every live key."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from spark_integration.options import Options, table_options, with_connection
from spark_integration.reading.as_of import AsOf, At, resolve_as_of
from spark_integration.reading.key_choice import Keys, key_texts, only_partitions, partitions_with, with_keys
from spark_integration.reading.metadata_columns import Metadata, described, expires_at
from spark_integration.reading.misfit import OnMisfit
from spark_integration.reading.moved import refuse_moved
from spark_integration.reading.schemas.infer import inferred
from spark_integration.reading.topic_facts import topic_facts
from spark_integration.reading.topic_reader import Layout, TopicReader
from spark_integration.settings import Settings, topic_settings


def read_sow(
    spark: SparkSession,
    topic: str,
    schema: StructType | str | None = None,
    options: Options | None = None,
    *,
    at: At | None = None,
    allow_compacted: bool = False,
    filter: str | None = None,  # noqa: A002 - the word for it
    keys: Keys | None = None,
    config: Settings = None,
    metadata: Metadata = "struct",
    on_misfit: OnMisfit = "fail",
) -> DataFrame:
    """Read the state of the world as committed at the start of the query, or an earlier one.

    Returns:
        One row per live key: the record's fields (or `value`, its JSON text, without a schema), then the struct `_sow`
        with `sow_key` (string), `version` (long), `timestamp`, `expires_at` (null: never), `source`
        (`topic/partition/offset` of the input record, if the topic has `source_header`), `headers` (array of key and
        value), `partition` (int) and `offset` (long) of the record.

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.sow` is added.
        schema: the fields to select: a `StructType`, DDL such as `id LONG, name STRING`, or `infer`, which reads some
            records first. None: the text for JSON, all fields of the topic's schema for Avro.
        options: options of Spark's Kafka source.
        at: the end of the read. A datetime with a time zone: all records before the first one of that time or later,
            without those expired at that time. An ending offset for each partition: all records before it, without
            those that workers had expired. None: all committed records, without those expired now.
        allow_compacted: accept an `at` from before which compaction may have removed records because of later ones.
        filter: a filter in the filter language, which selects merged records.
        keys: the keys to read: key values, or lists of them for keys of several fields. Only the partitions that have
            these keys are read.
        config: the topic's settings; None: plain JSON.
        metadata: `struct`, or `flat` for columns `sow_key`, `version`, … instead of `_sow`; then no field of a record
            may have one of these names.
        on_misfit: the treatment of a record that does not fit the schema, or cannot be decoded. `fail`: the query
            fails. `column`: its fields are null, and `_sow.misfit` has `reason`, `topic` and the bytes, `value`; it is
            null for every other row.

    Raises:
        ConfigurationError: an argument cannot be used, or the topic no longer has all records before `at`.
        FilterError: the filter is invalid.
        BrokerUnavailable: Kafka did not answer in time.
        TopicMoved: another topic has taken its place; with `at`, its records of that time are read.
    """
    settings = topic_settings(topic, config, options=options)
    kafka_options = table_options(topic, "sow", with_connection(options, settings.kafka), settings.names)
    kafka_topic = settings.kafka_topic("sow")
    if at is None:
        refuse_moved(spark, settings, kafka_options)

    def infer() -> StructType:
        with topic_facts(spark, kafka_topic, kafka_options) as facts:
            ends = None if at is None else resolve_as_of(facts, at, allow_compacted=allow_compacted).ends
            return inferred(spark, facts, kafka_options, ends)

    reader = TopicReader.of(settings, schema, described(), Layout(metadata, on_misfit), infer)
    texts = None if keys is None else key_texts(keys)
    with topic_facts(spark, kafka_topic, kafka_options) as facts:
        end = None if at is None else resolve_as_of(facts, at, allow_compacted=allow_compacted)
        partitions = list(facts.partitions)
    if texts is not None:
        partitions = partitions_with(texts, len(partitions), settings)
        kafka_options = only_partitions(kafka_options, kafka_topic, partitions)
    if end is not None:
        kafka_options["endingOffsets"] = end.ending_offsets(kafka_topic, partitions)
    records = spark.read.format("kafka").options(**kafka_options).load()
    records = records if texts is None else with_keys(records, texts)
    # A key lives in one partition, where offsets order its records. Tombstones must take part, as they replace the
    # records before them. Decoding comes last, so it runs once per key and not once per record.
    latest = (
        records.groupBy("partition", "key")
        .agg(F.max_by(F.struct("value", "headers", "timestamp", "offset"), "offset").alias("latest"))
        .select("partition", "key", "latest.*")
        .where(F.col("value").isNotNull() & _is_live(end))
    )
    return reader.rows(latest, kafka_topic, matching=filter)


def _is_live(end: AsOf | None) -> Column:
    """Return whether a record has not expired, also if no worker is running to delete it."""
    if end is not None and end.time_ms is None:
        # Offsets have no time: records that workers had expired have a tombstone before them.
        return F.lit(True)
    now = F.current_timestamp() if end is None else F.timestamp_millis(F.lit(end.time_ms))
    return expires_at().isNull() | (expires_at() > now)
