"""Restricts a read to some keys, and so to the partitions that can have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, RecordRejected
from processor.kafka.partitioner import partitions_of
from processor.merge import KeyFields
from spark_integration.settings import TopicSettings

Keys: TypeAlias = Sequence[str | int | bool | Sequence[str | int | bool]]
"""Keys of records: of one key field its value, of several a list of their values; or the text of `_sow.sow_key`."""

_ALL = "subscribe"


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
    return records.where(F.col("key").isin([F.lit(key).cast("binary") for key in keys]))


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
