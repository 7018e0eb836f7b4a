"""Chooses the part of a SOW topic that a table shows: its end, some keys, and the latest record of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, RecordRejected
from processor.kafka.partitioner import partitions_of
from processor.merge import KeyFields
from spark_integration.foundation.options import Options, table_options
from spark_integration.read.as_of import AsOf, At, resolve_as_of

if TYPE_CHECKING:
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.read.topic_facts import TopicFacts

Keys: TypeAlias = Sequence[str | int | bool | Sequence[str | int | bool]]
"""Keys of records: of one key field its value, of several a list of their values; or the text of `_sow.sow_key`."""

_ALL = "subscribe"


class TablePart(NamedTuple):
    """The part of a SOW topic that a table shows."""

    end: AsOf | None
    """The end of the read; None: everything committed now."""
    partitions: list[int]
    """The partitions that may have the keys."""

    @classmethod
    def of(
        cls,
        facts: TopicFacts,
        settings: TopicSettings,
        at: At | None,
        keys: Iterable[str] | None,
        *,
        allow_compacted: bool,
    ) -> TablePart:
        """Find the part, and make sure that the topic has all records of it.

        Args:
            facts: offsets and settings of the SOW topic.
            settings: the settings of the topic.
            at: the requested end; None: everything committed now.
            keys: the texts of the keys; None: all keys.
            allow_compacted: accept that compaction may have removed records from before the end.

        Raises:
            ConfigurationError: as in `resolve_as_of` and `partitions_with`.
            TopicMoved: another topic has taken its place; with `at`, its records of that time are read.
        """
        if at is None:
            facts.refuse_moved()
        end = None if at is None else resolve_as_of(facts, at, allow_compacted=allow_compacted)
        count = len(facts.partitions)
        return cls(end, list(range(count)) if keys is None else partitions_with(keys, count, settings))


def latest_records(records: DataFrame) -> DataFrame:
    """The last record of each key, without those that are deleted.

    A key lives in one partition, where offsets order its records. Tombstones must take part, as they replace the
    records before them.

    Args:
        records: rows of Spark's Kafka source.

    Returns:
        `partition`, `key`, `value`, `headers`, `timestamp`, `offset`.
    """
    latest = F.expr("max_by(struct(value, headers, timestamp, offset), offset) AS latest")
    # The key first: Spark sorts by its first bytes, and compares whole rows only where these are equal.
    rows = records.groupBy("key", "partition").agg(latest).selectExpr("partition", "key", "latest.*")
    return rows.where("value IS NOT NULL")


def read_latest(spark: SparkSession, settings: TopicSettings, kafka: Options) -> DataFrame:
    """Read the `latest_records` of a SOW topic, expired ones among them.

    Args:
        spark: the session.
        settings: the settings of the topic.
        kafka: options of Spark's Kafka source.
    """
    options = table_options(settings.family, "sow", kafka, settings.names)
    return latest_records(spark.read.format("kafka").options(**options).load())


def key_texts(keys: Keys) -> list[str]:
    """The text of each key, the same as the workers compute.

    Raises:
        ConfigurationError: there is no key, or a value is of a type that no key has.
    """
    if isinstance(keys, str):
        raise ConfigurationError(f"keys={keys!r} is one text; give a list of keys: keys=[{keys!r}]")
    texts = list(dict.fromkeys(_text_of(key) for key in keys))
    if not texts:
        raise ConfigurationError("keys names no key; leave it out to read all records")
    return texts


def partitions_with(keys: Iterable[str], partitions: int, settings: TopicSettings) -> list[int]:
    """The partitions in which records of these keys may be.

    Raises:
        ConfigurationError: the topic's keys are no texts.
    """
    topic = settings.topic
    if topic.key_format != "text":
        raise ConfigurationError(
            f"keys: {settings.name} has key_format {topic.key_format!r}, and its keys are no texts; use a filter"
        )
    is_anywhere = topic.foreign_partition == "accept"
    return sorted(
        {number for key in keys for number in partitions_of(key.encode(), partitions, is_anywhere=is_anywhere)}
    )


def only_partitions(options: Mapping[str, str], topic: str, partitions: Iterable[int]) -> dict[str, str]:
    """Change the options of a complete topic to those of some partitions."""
    kept = {name: text for name, text in options.items() if name != _ALL}
    return kept | {"assign": json.dumps({topic: list(partitions)})}


def with_keys(records: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The records of these keys."""
    texts = ", ".join(f"X'{key.encode().hex()}'" for key in keys)
    return records.where(f"key IN ({texts})")


def _text_of(key: str | int | bool | Sequence[str | int | bool]) -> str:
    values = [*key] if isinstance(key, list | tuple) else [key]
    try:
        text = KeyFields(tuple(f"/{number}" for number in range(len(values)))).text_of_values(
            values if len(values) != 1 else values[0]
        )
    except RecordRejected:
        text = None
    if text is None:
        raise ConfigurationError(
            f"keys has {key!r:.100}; a key is a string, a whole number or a boolean, or a list with one for each field"
        )
    return text
