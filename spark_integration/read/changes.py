"""Reads the changes of a topic: deltas, and the records before and after each change, as tables and streams."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.topics.family import Role
from spark_integration.foundation.options import Options, source_options, table_options, with_connection
from spark_integration.foundation.settings import Settings, TopicSettings, topic_settings
from spark_integration.foundation.sql import Sql
from spark_integration.read.as_of import At, Span, resolve_span
from spark_integration.read.images import (
    IMAGE,
    Images,
    check_images,
    post_images,
    stream_with_pre_images,
    with_pre_images,
)
from spark_integration.read.metadata_columns import Metadata, described
from spark_integration.read.misfit import OnMisfit
from spark_integration.read.read_topics import delta_columns, infer_from_records
from spark_integration.read.table_part import Keys, key_texts, only_partitions, partitions_with, with_keys
from spark_integration.read.topic_facts import refuse_moved, topic_facts, until_moved
from spark_integration.read.topic_reader import Layout, TopicReader


def read_deltas(
    spark: SparkSession,
    topic: str,
    schema: StructType | str | None = None,
    options: Options | None = None,
    *,
    since: At | None = None,
    until: At | None = None,
    allow_gaps: bool = False,
    keys: Keys | None = None,
    config: Settings = None,
    metadata: Metadata = "struct",
    on_misfit: OnMisfit = "fail",
) -> DataFrame:
    """Read the deltas between two moments or offsets as a table: one row per update.

    The delta topic keeps them for its `retention.ms`, seven days unless its settings have another.

    Returns:
        The columns of `stream_deltas`.

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.delta` is added.
        schema: as for `read_sow`; `infer` reads the SOW topic.
        options: options of Spark's Kafka source.
        since: a datetime with a time zone: from the first delta of that time or later; or the first offset of each
            partition. None: the oldest delta that the topic still has.
        until: as `at` of `read_sow`: all deltas before it. None: all committed deltas.
        allow_gaps: accept that retention may have removed deltas after `since`.
        keys: the keys to read: key values, or lists of them for keys of several fields. Only the partitions that have
            these keys are read.
        config: the topic's settings; None: plain JSON.
        metadata: as for `read_sow`.
        on_misfit: as for `read_sow`.

    Raises:
        ConfigurationError: an argument cannot be used, or the topic no longer has all deltas since `since`.
        BrokerUnavailable: Kafka did not answer in time.
    """
    asked = _Asked(spark, topic, "delta", options, config)
    records, _ = asked.records(since, until, keys, allow_gaps=allow_gaps)
    return asked.reader(schema, delta_columns(), Layout(metadata, on_misfit)).rows(records, asked.kafka_topic)


def read_changes(
    spark: SparkSession,
    topic: str,
    schema: StructType | str | None = None,
    options: Options | None = None,
    *,
    images: Images = "delta",
    since: At | None = None,
    until: At | None = None,
    allow_gaps: bool = False,
    keys: Keys | None = None,
    config: Settings = None,
    metadata: Metadata = "struct",
    on_misfit: OnMisfit = "fail",
) -> DataFrame:
    """Read the changes between two moments or offsets as a table.

    `images="delta"`: the rows of `read_deltas`. `images="post"`: one row per change with the record after it, all null
    in a delete. `images="pre_post"`: for each change a row with the record before it and a row with the record after
    it; an insert has no row before, a delete or expiry no row after. `_sow.image` is `delta`, `pre` or `post`; all
    other metadata describes the change, also in a `pre` row.

    With `since`, the rows that follow lead from `read_sow(at=since)` to `read_sow(at=until)`, and each `pre` is the
    record of that state or the `post` before it. Records come from the SOW topic, whose changes compaction keeps for
    `min.compaction.lag.ms`, ten minutes unless its settings have more; the query must be over within it. Further back
    only deltas are left. Without `since`, the rows lead from no records to `until`: changes that compaction has removed
    are missing, and the first row of such a key is a later change without a row before.

    Returns:
        The columns of `stream_sow`, or for `delta` those of `stream_deltas`; `_sow` has another field, `image`.

    Args:
        spark: a session that has Spark's Kafka connector.
        topic: the family's name; `.delta` or `.sow` is added.
        schema: as for `read_sow`.
        options: options of Spark's Kafka source.
        images: the rows of a change.
        since: as for `read_deltas`; offsets are those of the SOW topic, for `delta` those of the delta topic.
        until: as for `read_deltas`.
        allow_gaps: accept that compaction or retention may have removed changes after `since`.
        keys: as for `read_deltas`.
        config: the topic's settings; None: plain JSON.
        metadata: as for `read_sow`.
        on_misfit: as for `read_sow`.

    Raises:
        ConfigurationError: an argument cannot be used, or the topic no longer has all changes since `since`.
        BrokerUnavailable: Kafka did not answer in time.
    """
    check_images(images)
    layout = Layout(metadata, on_misfit)
    asked = _Asked(spark, topic, "delta" if images == "delta" else "sow", options, config)
    records, span = asked.records(since, until, keys, allow_gaps=allow_gaps, from_oldest=images == "pre_post")
    return asked.images(records, images, schema, layout, span)


def stream_changes(
    spark: SparkSession,
    topic: str,
    schema: StructType | str | None = None,
    options: Options | None = None,
    *,
    images: Images = "delta",
    config: Settings = None,
    metadata: Metadata = "struct",
    on_misfit: OnMisfit = "fail",
) -> DataFrame:
    """Stream the changes, with the rows of `read_changes`.

    `images="pre_post"` keeps the last record of each key in Spark's state, so it begins with the oldest record of the
    SOW topic, and `startingOffsets` is refused: first come the records that compaction has left, each as an insert or
    as a later change without a row before, then each change with both.

    Returns:
        A streaming DataFrame with the columns of `read_changes`.

    Args:
        spark: a session that has Spark's Kafka connector; for `pre_post` its state is in RocksDB.
        topic: the family's name; `.delta` or `.sow` is added.
        schema: as for `stream_sow`.
        options: as for `stream_sow`.
        images: the rows of a change.
        config: the topic's settings; None: plain JSON.
        metadata: as for `read_sow`.
        on_misfit: as for `read_sow`.

    Raises:
        ConfigurationError: an argument or the session cannot be used.
    """
    check_images(images)
    asked = _Asked(spark, topic, "delta" if images == "delta" else "sow", options, config)
    return asked.images(asked.stream(from_oldest=images == "pre_post"), images, schema, Layout(metadata, on_misfit))


class _Asked:
    """One topic of a family, and the session that reads it."""

    def __init__(self, spark: SparkSession, topic: str, role: Role, options: Options | None, config: Settings) -> None:
        self._spark, self._topic, self._role = spark, topic, role
        self._settings: TopicSettings = topic_settings(topic, config, options=options, needs_sow=role == "sow")
        self._options = options
        self._java = with_connection(options, self._settings.kafka)
        self.kafka_topic = self._settings.kafka_topic(role)

    def records(
        self,
        since: At | None,
        until: At | None,
        keys: Keys | None,
        *,
        allow_gaps: bool,
        from_oldest: bool = False,
    ) -> tuple[DataFrame, Span]:
        """The records between two bounds, and the bounds as offsets."""
        options = table_options(self._topic, self._role, self._java, self._settings.names)
        texts = None if keys is None else key_texts(keys)
        if until is None:
            refuse_moved(self._settings, self._options)
        with topic_facts(self._settings, self._role, self._options) as facts:
            span = resolve_span(facts, since, until, allow_gaps=allow_gaps)
            partitions = list(facts.partitions)
        if texts is not None:
            partitions = partitions_with(texts, len(partitions), self._settings)
            options = only_partitions(options, self.kafka_topic, partitions)
        options |= span.options(self.kafka_topic, partitions, from_oldest=from_oldest)
        records = until_moved(self._spark.read.format("kafka").options(**options).load(), self.kafka_topic)
        return records if texts is None else with_keys(records, texts), span

    def stream(self, *, from_oldest: bool) -> DataFrame:
        """The records as they come."""
        options = source_options(self._topic, self._role, self._java, self._settings.names)
        if from_oldest:
            if starts := [name for name in options if name.lower().startswith("starting")]:
                raise ConfigurationError(
                    f"option {starts[0]!r} cannot be given with images='pre_post': the record before a change may be "
                    "any earlier one, so the stream begins with the oldest; leave it out"
                )
            options["startingOffsets"] = "earliest"
        refuse_moved(self._settings, self._options)
        return until_moved(self._spark.readStream.format("kafka").options(**options).load(), self.kafka_topic)

    def images(
        self, records: DataFrame, images: Images, schema: StructType | str | None, layout: Layout,
        span: Span | None = None,
    ) -> DataFrame:  # fmt: skip
        """The rows of the changes that records are."""
        if images == "delta":
            columns = delta_columns() | {IMAGE: "'delta'"}
        else:
            others = described()
            columns = {"sow_key": others.pop("sow_key"), "kind": "kind", IMAGE: IMAGE, **others}
            if images == "post":
                records = post_images(records)
            elif span is None:
                records = stream_with_pre_images(self._spark, records)
            else:
                records = with_pre_images(records, span.begins)
        return self.reader(schema, columns, layout, span).rows(records, self.kafka_topic)

    def reader(
        self,
        schema: StructType | str | None,
        columns: Mapping[str, Sql | Column],
        layout: Layout,
        span: Span | None = None,
    ) -> TopicReader:
        """The reader with these metadata columns; `infer` looks at the records before the end of the span."""
        ends = span.ends if span is not None and self._role == "sow" else None
        return TopicReader.of(
            self._settings,
            schema,
            columns,
            layout,
            lambda: infer_from_records(self._spark, self._settings, self._options, ends),
        )
