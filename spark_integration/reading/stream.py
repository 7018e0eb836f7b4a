"""Reads topics as streams: every update of the SOW topic, every change of the delta topic."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.topics.family import Role
from processor.wire import columns as headers
from spark_integration.options import Options, source_options, table_options, with_connection
from spark_integration.reading.metadata_columns import Metadata, described, header_text, kind_of_update
from spark_integration.reading.misfit import OnMisfit
from spark_integration.reading.moved import refuse_moved, until_moved
from spark_integration.reading.schemas.infer import inferred
from spark_integration.reading.topic_facts import topic_facts
from spark_integration.reading.topic_reader import CHANGED, Layout, TopicReader, changed_paths_column
from spark_integration.settings import Settings, TopicSettings, topic_settings


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
    columns: dict[str, Column],
    layout: Layout,
) -> DataFrame:
    settings = topic_settings(topic, config, options=options, needs_sow=role == "sow")
    with_kafka = with_connection(options, settings.kafka)
    kafka_options = source_options(topic, role, with_kafka, settings.names)
    reader = TopicReader.of(settings, schema, columns, layout, lambda: infer_from_records(spark, settings, with_kafka))
    refuse_moved(spark, settings, kafka_options)
    records = spark.readStream.format("kafka").options(**kafka_options).load()
    return reader.rows(until_moved(records, settings.kafka_topic(role)), settings.kafka_topic(role))


def infer_from_records(spark: SparkSession, settings: TopicSettings, options: Options) -> StructType:
    """Infer the columns from the full records, as deltas seldom have all fields."""
    # The start of a stream does not apply to a table.
    kept = {name: text for name, text in options.items() if "offsets" not in name.lower()}
    kafka_options = table_options(settings.family, "sow", kept, settings.names)
    with topic_facts(spark, settings.kafka_topic("sow"), kafka_options) as facts:
        return inferred(spark, facts, kafka_options)


def _described() -> dict[str, Column]:
    columns = described()
    return {"sow_key": columns.pop("sow_key"), "kind": kind_of_update(), **columns}


def delta_columns() -> dict[str, Column]:
    """The metadata columns of deltas, by name, in order."""
    removed = F.from_json(header_text(headers.REMOVED), "array<string>", {"mode": "FAILFAST"})
    return _described() | {
        CHANGED: changed_paths_column(),
        "removed": F.coalesce(removed, F.array().cast("array<string>")),
        "empty": F.coalesce(header_text(headers.EMPTY) == "true", F.lit(False)),
    }
