"""The input of a merge: what was published up to a cut, which is fixed before anything is read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, IntegralType, StringType, TimestampType

from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka.admin import Admin
from processor.kafka.log_reader import LogReader
from processor.topics import topic_name
from spark_integration.merge.rows import HEADERS_DDL
from spark_integration.options import table_options

if TYPE_CHECKING:
    from processor.topics import Role
    from spark_integration.options import Options
    from spark_integration.settings import TopicSettings

Offsets: TypeAlias = Mapping[int, int]
"""An offset of each partition, by its number."""

_SERVERS: Final = "bootstrap.servers"
_SAME_NAMES: Final = (_SERVERS, "security.protocol", "sasl.mechanism")
"""Properties that Java's clients, which Spark uses, and librdkafka call the same."""

_OURS: Final = {
    "endingoffsets": "`until` says where the history ends",
    "endingoffsetsbytimestamp": "`until` says where the history ends",
    "endingtimestamp": "`until` says where the history ends",
    "failondataloss": "a history with a gap merges to something else",
}
_ASK_TIMEOUT_S: Final = 15.0


class Bounds(NamedTuple):
    """A part of each partition of a topic."""

    begins: dict[int, int]
    """The first offset of each."""
    ends: dict[int, int]
    """The offset after the last one."""


class Broker:
    """What the driver asks Kafka about one family; close it."""

    def __init__(self, settings: TopicSettings, options: Options | None) -> None:
        """Connect as the settings say, and where they say nothing as the options for Spark do.

        Raises:
            ConfigurationError: neither says where Kafka is.
        """
        given = {name.removeprefix("kafka."): value for name, value in (options or {}).items()}
        kafka = {name: given[name] for name in _SAME_NAMES if name in given} | dict(settings.kafka)
        if not kafka.get(_SERVERS):
            raise ConfigurationError(
                f"nothing says where Kafka is: options={{'kafka.{_SERVERS}': 'localhost:9092'}}, "
                "and a section `kafka` in the settings where it asks for credentials"
            )
        self.kafka: Final = kafka
        self.group: Final = f"{settings.application_id}.{settings.name}"
        """The workers' consumer group."""
        self.admin: Final = Admin(kafka)
        self._name = settings.name
        self._reader = LogReader(kafka, group=self.group)

    def partitions(self, role: Role) -> int:
        """How many partitions a topic of the family has.

        Raises:
            ConfigurationError: there is no such topic.
        """
        topic = topic_name(self._name, role)
        count = self.admin.cluster().topics.get(topic)
        if count is None:
            raise ConfigurationError(f"no topic {topic} at {self.kafka[_SERVERS]}: `sowstream topics apply` makes it")
        return count

    def bounds(self, role: Role, partitions: int) -> Bounds:
        """What is committed of a topic now: of an open transaction nothing lies before the end."""
        topic = topic_name(self._name, role)
        try:
            found = [self._reader.bounds(topic, partition, _ASK_TIMEOUT_S) for partition in range(partitions)]
        except TimeoutError:
            raise self._silent(topic) from None
        return Bounds(
            {partition: begin for partition, (begin, _) in enumerate(found)},
            {partition: end for partition, (_, end) in enumerate(found)},
        )

    def at_time(self, role: Role, bounds: Bounds, time_ms: int) -> dict[int, int]:
        """The offset of each partition's first record of this time or later; its end where there is none."""
        topic = topic_name(self._name, role)
        try:
            found = self._reader.at_time(topic, bounds.ends, time_ms, _ASK_TIMEOUT_S)
        except TimeoutError:
            raise self._silent(topic) from None
        return {
            partition: end if (at := found.get(partition)) is None else min(at, end)
            for partition, end in bounds.ends.items()
        }

    def committed(self, partitions: int) -> dict[int, int]:
        """The offsets that the workers' group has committed; partitions without one are left out."""
        topic = topic_name(self._name, "publish")
        try:
            found = {number: self._reader.committed(topic, number, _ASK_TIMEOUT_S) for number in range(partitions)}
        except TimeoutError:
            raise self._silent(topic) from None
        return {number: offset for number, offset in found.items() if offset is not None}

    def refuse_members(self, why: str) -> None:
        """Make sure that no worker is in the group.

        Raises:
            ConfigurationError: one is.
            BrokerUnavailable: no answer in time.
        """
        topic = topic_name(self._name, "publish")
        question = self.admin.ask_group(self.group, topic, _ASK_TIMEOUT_S)
        deadline_s = time.monotonic() + _ASK_TIMEOUT_S
        while not question.is_answered:
            if time.monotonic() > deadline_s:
                raise self._silent(topic)
            time.sleep(0.01)
        if members := question.answer().hosts:
            raise ConfigurationError(
                f"the group {self.group} has {len(members)} living members, such as one at "
                f"{next(iter(members.values()))}: {why}; stop the workers first"
            )

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def _silent(self, topic: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"asking about {topic}: no answer in {_ASK_TIMEOUT_S:g} s")


def bounds_of(broker: Broker, partitions: int, since: Offsets | None, until: Offsets | datetime | None) -> Bounds:
    """From where to where the input topic is read.

    Args:
        broker: tells what there is.
        partitions: their number.
        since: where to begin; None: with the oldest record kept.
        until: offset after the last record of each partition, or a time, which the records have to be before; None:
            all that is committed now.

    Raises:
        ConfigurationError: there is not what is asked for.
    """
    found = broker.bounds("publish", partitions)
    ends = found.ends
    if isinstance(until, datetime):
        ends = broker.at_time("publish", found, round(until.timestamp() * 1000))
    elif until is not None:
        ends = all_of("until", until, partitions)
    begins = found.begins if since is None else all_of("since", since, partitions)
    for partition in range(partitions):
        begin, end, oldest, newest = (offsets[partition] for offsets in (begins, ends, found.begins, found.ends))
        if not oldest <= begin <= end <= newest:
            raise ConfigurationError(
                f"partition {partition} is to be read from offset {begin} to {end}; the topic has {oldest} to {newest}"
                + ("; what was before is gone: begin with `base`" if begin < oldest else "")
            )
    return Bounds(begins, ends)


def all_of(argument: str, offsets: Offsets, partitions: int) -> dict[int, int]:
    """Offsets of every partition."""
    if set(offsets) != set(range(partitions)):
        raise ConfigurationError(
            f"{argument} has the partitions {sorted(offsets)}; the topic has 0 to {partitions - 1}: give each of them"
        )
    return dict(offsets)


def read_topic(spark: SparkSession, topic: str, role: Role, bounds: Bounds, options: Options) -> DataFrame:
    """The committed records of a part of a topic, in the columns of Spark's Kafka source.

    Raises:
        ConfigurationError: an option is ours to set.
    """
    names = {name.lower(): name for name in options}
    for name, reason in _OURS.items():
        if name in names:
            raise ConfigurationError(f"option {names[name]!r} cannot be given: {reason}; leave it out")
    kafka_topic = topic_name(topic, role)
    chosen = table_options(topic, role, options) | {
        "startingOffsets": json.dumps({kafka_topic: {str(p): at for p, at in bounds.begins.items()}}),
        "endingOffsets": json.dumps({kafka_topic: {str(p): at for p, at in bounds.ends.items()}}),
        "failOnDataLoss": "true",
    }
    return spark.read.format("kafka").options(**chosen).load()


def as_records(history: DataFrame) -> DataFrame:
    """Rows with the columns of Spark's Kafka source as the columns that a merge reads: `RECORDS_DDL`.

    Args:
        history: `key` and `value` (binary or string), `partition` and `offset` (whole numbers), `timestamp`; `headers`
            may be left out.

    Raises:
        ConfigurationError: a column is missing or of another type.
    """
    types = {field.name: field.dataType for field in history.schema.fields}
    for names, kinds, word in (
        (("key", "value"), (BinaryType, StringType), "binary"),
        (("partition", "offset"), (IntegralType,), "a whole number"),
        (("timestamp",), (TimestampType,), "a timestamp"),
    ):
        for name in names:
            if not isinstance(types.get(name), kinds):
                found = types[name].simpleString() if name in types else "missing"
                raise ConfigurationError(
                    f"column {name!r} of the history is {found}, not {word}; it has the columns of Spark's Kafka "
                    "source: key, value, headers, partition, offset, timestamp. `history_of` makes them of plain files"
                )
    given = isinstance(types.get("headers"), ArrayType)
    return history.select(
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        (F.col("headers") if given else F.lit(None)).cast(HEADERS_DDL).alias("headers"),
        F.col("partition").cast("int").alias("partition"),
        F.col("offset").cast("bigint").alias("offset"),
        F.unix_millis("timestamp").alias("timestamp_ms"),
    )
