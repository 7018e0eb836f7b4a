"""Refuses to read a topic that has moved: it gets no more records, and another one has taken its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, TopicMoved
from processor.wire.columns import KIND
from processor.wire.forwarding import MOVED_RETENTION_MS, RESERVED, moved_to
from spark_integration.reading.topic_facts import topic_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from processor.record import Headers
    from spark_integration.settings import TopicSettings
    from spark_integration.source.facts import LogFacts

_RETENTION: Final = "delete.retention.ms"


def may_have_moved(retention_ms: str | None) -> bool:
    """Return whether a SOW topic may have moved, by its `delete.retention.ms`; only then are its marks looked for."""
    return retention_ms is not None and float(retention_ms) >= MOVED_RETENTION_MS


def refuse_moved(spark: SparkSession, settings: TopicSettings, options: Mapping[str, str]) -> None:
    """Refuse a topic that has moved.

    Args:
        spark: a session with Spark's Kafka connector.
        settings: the settings of the topic.
        options: options of Spark's Kafka source.

    Raises:
        TopicMoved: another topic has taken its place.
        BrokerUnavailable: Kafka did not answer in time.
    """
    topic = settings.kafka_topic("sow")
    try:
        with topic_facts(spark, topic, options) as facts:
            retention_ms = facts.setting(_RETENTION)
    except ConfigurationError:
        return  # There is no SOW topic, or it may not be looked at: what is read says so, if that is at fault.
    if not may_have_moved(retention_ms):
        return
    kafka = {name: text for name, text in options.items() if name.lower().startswith("kafka.")}
    reading = {"subscribe": topic, "includeHeaders": "true", "startingOffsets": "earliest"}
    records = spark.read.format("kafka").options(**kafka, **reading).load()
    for row in records.where(F.col("value").isNull() & _is_reserved()).select("key", "headers").collect():
        headers: Headers = [(header["key"], bytes(header["value"] or b"")) for header in row["headers"] or ()]
        if (name := moved_to(bytes(row["key"]), headers)) is not None:
            raise TopicMoved(topic, name)


def refuse_moved_log(facts: LogFacts, kafka: Mapping[str, str], group: str) -> None:
    """Refuse a topic that has moved, in a process without a JVM.

    Args:
        facts: those of its SOW topic.
        kafka: librdkafka properties.
        group: the name of a consumer group; nothing joins it.

    Raises:
        TopicMoved: another topic has taken its place.
        BrokerUnavailable: Kafka did not answer in time.
    """
    if may_have_moved(facts.setting(_RETENTION)):
        from processor.client.feeds.snapshot_boundary import refuse_moved as refuse  # noqa: PLC0415 - seldom needed
        from processor.kafka.admin.admin import Admin  # noqa: PLC0415

        refuse(kafka, Admin(kafka), facts.topic, len(facts.partitions), group)


def until_moved(records: DataFrame, topic: str) -> DataFrame:
    """The records of a SOW or delta topic; the query fails at the mark that says that it has moved.

    Args:
        records: rows of Spark's Kafka source.
        topic: their Kafka topic.
    """
    is_mark = F.col("value").isNull() & _is_reserved() & ~F.exists("headers", lambda header: header["key"] == KIND)
    error = F.concat(
        F.lit(f"{topic} has moved, and gets no more records; the topic in its place is named at the end of "),
        F.substring(F.col("key").cast("string"), 2, 300),
    )
    return records.where(F.when(is_mark, F.raise_error(error).cast("boolean")).otherwise(F.lit(True)))


def _is_reserved() -> Column:
    return F.hex("key").startswith(RESERVED.hex().upper())
