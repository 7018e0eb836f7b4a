"""Reads a SOW topic as a table of the latest records, and topics as streams of every update or change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.topics.family import Role
from processor.wire import columns as headers
from spark_integration.foundation.options import Options, offsets_option, source_options, table_options, with_connection
from spark_integration.foundation.pyspark_private import infer_json
from spark_integration.foundation.settings import Settings, TopicSettings, topic_settings
from spark_integration.foundation.sql import Sql
from spark_integration.read.as_of import AsOf, At
from spark_integration.read.metadata_columns import Metadata, described, header_text, is_live, kind_of_update
from spark_integration.read.misfit import OnMisfit
from spark_integration.read.table_part import Keys, TablePart, key_texts, latest_records, only_partitions, with_keys
from spark_integration.read.topic_facts import TopicFacts, refuse_moved, topic_facts, until_moved
from spark_integration.read.topic_reader import CHANGED, Layout, TopicReader, changed_paths_column

SAMPLE_OFFSETS: Final = 10_000
"""Number of offsets to read at the end of each partition."""


class NothingToInfer(ConfigurationError):
    """The topic has no record with fields yet, from which columns could be inferred."""


def inferred(
    spark: SparkSession, facts: TopicFacts, options: Mapping[str, str], ends: Mapping[int, int] | None = None
) -> StructType:
    """Infer the columns from a topic's last committed records; equal records give equal columns.

    It runs a Spark job, which reads the last 10,000 offsets of each partition, or the complete topic if those hold no
    record. A field that only earlier records have gets no column; a value that does not fit its column fails the query.

    Args:
        spark: the session.
        facts: the offsets of the topic.
        options: options of Spark's Kafka source, for this topic.
        ends: the end of the read; None: everything committed now.

    Raises:
        NothingToInfer: the topic has no record with fields.
        ConfigurationError: it has a record that is no JSON.
    """
    begins = facts.begins()
    ends = facts.committed_ends() if ends is None else ends
    late = {partition: max(begins[partition], end - SAMPLE_OFFSETS) for partition, end in ends.items()}
    for starts in (late, begins) if late != begins else (begins,):
        ranges = {
            "startingOffsets": offsets_option(facts.topic, starts),
            "endingOffsets": offsets_option(facts.topic, ends),
        }
        try:
            struct = _struct(spark, {**options, **ranges})
        except (Py4JJavaError, PySparkException) as error:
            if "MALFORMED_RECORD" not in str(error):
                raise
            raise ConfigurationError(
                f"schema='infer': {facts.topic} has a record that is no JSON object; give a schema, or the config that "
                "says its message type"
            ) from None
        if struct.fields:
            return struct
    raise NothingToInfer(
        f"schema='infer': {facts.topic} has no record with fields to look at; give a schema such as "
        "'id LONG, name STRING'"
    )


def _struct(spark: SparkSession, options: Mapping[str, str]) -> StructType:
    values = spark.read.format("kafka").options(**options).load().where("value IS NOT NULL")
    return infer_json(spark, values.selectExpr("CAST(value AS STRING)"))


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
        metadata: `struct`; `flat` for columns `sow_key`, `version`, … instead of `_sow`, then no field of a record may
            have one of these names; or `none`, which leaves them out.
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
    texts = None if keys is None else key_texts(keys)

    with ExitStack() as connection:

        @cache
        def look_up() -> tuple[TopicFacts, TablePart]:
            facts = connection.enter_context(topic_facts(settings, "sow", options))
            return facts, TablePart.of(facts, settings, at, texts, allow_compacted=allow_compacted)

        def infer() -> StructType:
            facts, (end, _) = look_up()
            return inferred(spark, facts, kafka_options, None if end is None else end.ends)

        # First, as a schema that cannot be used is refused without a question to Kafka.
        reader = TopicReader.of(settings, schema, described(), Layout(metadata, on_misfit), infer)
        _, (end, partitions) = look_up()
    if texts is not None:
        kafka_options = only_partitions(kafka_options, kafka_topic, partitions)
    if end is not None:
        kafka_options["endingOffsets"] = end.ending_offsets(kafka_topic, partitions)
    records = spark.read.format("kafka").options(**kafka_options).load()
    latest = latest_records(records if texts is None else with_keys(records, texts))
    # Decoding comes last, so it runs once per key and not once per record.
    return reader.rows(latest.where(_is_live(end)), kafka_topic, matching=filter)


def _is_live(end: AsOf | None) -> Sql:
    """A condition: the record has not expired, also if no worker is running to delete it."""
    if end is not None and end.time_ms is None:
        # Offsets have no time: records that workers had expired have a tombstone before them.
        return "true"
    return is_live() if end is None else is_live(f"timestamp_millis({end.time_ms})")


def stream_sow(
    spark: SparkSession,
    topic: str,
    schema: StructType | str | None = None,
    options: Options | None = None,
    *,
    config: Settings = None,
    metadata: Metadata = "struct",
    on_misfit: OnMisfit = "fail",
) -> DataFrame:
    """Stream the full records: one row per update that compaction has left, deletes included.

    Returns:
        A streaming DataFrame: the record's fields (or `value`), all null in a delete; then the struct `_sow` with
        `sow_key`, `kind` (`insert`, `update`, `delete`, `expire`), `version`, `timestamp`, `expires_at`, `source`,
        `headers`, `partition`, `offset`. A watermark needs a column of its own:
        `.withColumn("time", F.col("_sow.timestamp")).withWatermark("time", "10 seconds")`.

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.sow` is added.
        schema: as for `read_sow`; `infer` reads the current SOW topic.
        options: options of Spark's Kafka source. A new query starts at the latest offset unless `startingOffsets` is
            given.
        config: the topic's settings; None: plain JSON.
        metadata: as for `read_sow`.
        on_misfit: as for `read_sow`.

    Raises:
        ConfigurationError: an argument cannot be used.
    """
    return _stream(spark, topic, "sow", schema, options, config, _described(), Layout(metadata, on_misfit))


def stream_deltas(
    spark: SparkSession,
    topic: str,
    schema: StructType | str | None = None,
    options: Options | None = None,
    *,
    config: Settings = None,
    metadata: Metadata = "struct",
    on_misfit: OnMisfit = "fail",
) -> DataFrame:
    """Stream the changes: one row per update.

    Returns:
        A streaming DataFrame: as `stream_sow`, with the key fields and the changed fields only, and in `_sow` also
        `changed` (the JSON Pointers of every path in the delta, key fields included: a null field in `changed` was set
        to null), `removed` (the JSON Pointers of the removed fields) and `empty` (true when nothing changed).

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.delta` is added.
        schema: as for `stream_sow`.
        options: as for `stream_sow`.
        config: as for `stream_sow`.
        metadata: as for `read_sow`.
        on_misfit: as for `read_sow`.

    Raises:
        ConfigurationError: an argument cannot be used.
    """
    return _stream(spark, topic, "delta", schema, options, config, delta_columns(), Layout(metadata, on_misfit))


def _stream(
    spark: SparkSession,
    topic: str,
    role: Role,
    schema: StructType | str | None,
    options: Options | None,
    config: Settings,
    columns: Mapping[str, Sql | Column],
    layout: Layout,
) -> DataFrame:
    settings = topic_settings(topic, config, options=options, needs_sow=role == "sow")
    kafka_options = source_options(topic, role, with_connection(options, settings.kafka), settings.names)
    reader = TopicReader.of(settings, schema, columns, layout, lambda: infer_from_records(spark, settings, options))
    refuse_moved(settings, options)
    records = spark.readStream.format("kafka").options(**kafka_options).load()
    return reader.rows(until_moved(records, settings.kafka_topic(role)), settings.kafka_topic(role))


def infer_from_records(
    spark: SparkSession, settings: TopicSettings, options: Options | None, ends: Mapping[int, int] | None = None
) -> StructType:
    """Infer the columns from the full records, as deltas seldom have all fields.

    Args:
        spark: the session.
        settings: the settings of the topic.
        options: options of the call.
        ends: the end of the read, where the records are those that the call reads; None: everything committed now.
    """
    # The start of a stream does not apply to a table.
    of_a_table = {name: text for name, text in (options or {}).items() if "offsets" not in name.lower()}
    kafka_options = table_options(settings.family, "sow", with_connection(of_a_table, settings.kafka), settings.names)
    with topic_facts(settings, "sow", options) as facts:
        return inferred(spark, facts, kafka_options, ends)


def _described() -> dict[str, Sql]:
    columns = described()
    return {"sow_key": columns.pop("sow_key"), "kind": kind_of_update(), **columns}


def delta_columns() -> dict[str, Sql | Column]:
    """The metadata columns of deltas, by name, in order."""
    removed = f"from_json({header_text(headers.REMOVED)}, 'array<string>', map('mode', 'FAILFAST'))"
    return {
        **_described(),
        CHANGED: changed_paths_column(),
        "removed": f"coalesce({removed}, CAST(array() AS ARRAY<STRING>))",
        "empty": f"coalesce({header_text(headers.EMPTY)} = 'true', false)",
    }
