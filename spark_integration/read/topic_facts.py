"""Offsets and settings of a topic, and whether it has moved, from the driver by librdkafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import NO_OFFSET
from processor.kafka.clients.log_reader import LogReader, patiently
from processor.wire.columns import KIND
from processor.wire.forwarding import MOVED_RETENTION_MS, RESERVED
from spark_integration.foundation.options import client_properties
from spark_integration.foundation.sql import literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from processor.topics.family import Role
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import TopicSettings


_Answer = TypeVar("_Answer")

_ANSWER_TIMEOUT_S: Final = 30.0
_ADVICE: Final = "check the option 'kafka.bootstrap.servers' and those of TLS and SASL, and whether the brokers run"


class TopicFacts:
    """The current offsets and settings of one topic."""

    def __init__(self, topic: str, kafka: Mapping[str, str], *, group: str) -> None:
        """Connect to Kafka and look up the topic.

        Args:
            topic: its Kafka name.
            kafka: librdkafka properties.
            group: the name of a consumer group; nothing joins it.

        Raises:
            ConfigurationError: the topic does not exist, this user may not describe it, Kafka refuses the login, or
                librdkafka rejects a property.
            BrokerUnavailable: Kafka did not answer in time.
        """
        self.topic = topic
        """Its Kafka name."""
        self._kafka, self._group = kafka, group
        try:
            self._admin = Admin(kafka)
        except ConfigurationError as error:
            problem = str(error).partition(": ")[2]
            raise ConfigurationError(
                f"the options that begin with 'kafka.': {problem}; these go to librdkafka"
            ) from None
        self._admin.cluster()  # An error has the reason why no broker answers.
        description = self._admin.describe_topics([topic], shows_hidden=True).get(topic)
        if description is None:
            raise ConfigurationError(
                f"the Kafka topic {topic} does not exist; check the name, or create it: `sowstream topics apply`"
            )
        if description.lacks == "Describe":
            raise ConfigurationError(
                f"this user may not describe the Kafka topic {topic}; give it the right `Describe`"
            )
        self._settings = description.config
        self.partitions = range(description.partitions)
        """The numbers of its partitions."""
        self._log: LogReader | None = None

    def begins(self) -> dict[int, int]:
        """The oldest offset kept of each partition."""
        return {partition: bounds[0] for partition, bounds in self._bounds().items()}

    def ends(self) -> dict[int, int]:
        """The next offset of each partition, after open transactions."""
        return self._admin.end_offsets(self.topic, self.partitions)

    def committed_ends(self) -> dict[int, int]:
        """The last stable offset of each partition: the beginning of the first open transaction, else the end."""
        return {partition: bounds[1] for partition, bounds in self._bounds().items()}

    def at_time(self, time_ms: int) -> dict[int, int]:
        """The first offset of each partition with a record of this time or later; its end where there is none.

        Records of open transactions count: once they are committed, later ones than this time must not be read.
        """
        ends = self.ends()
        offsets = self._admin.end_offsets(self.topic, self.partitions, kind=time_ms)
        return {number: ends[number] if offset == NO_OFFSET else offset for number, offset in offsets.items()}

    def setting(self, name: str) -> str | None:
        """A setting of the topic; None where access is denied."""
        return self._settings.get(name)

    def refuse_moved(self) -> None:
        """Refuse a SOW topic that has moved.

        Raises:
            TopicMoved: another topic has taken its place.
            BrokerUnavailable: Kafka did not answer in time.
        """
        retention_ms = self.setting("delete.retention.ms")
        # Only a topic that has moved keeps its deletes for ever; only there are its marks looked for.
        if retention_ms is not None and float(retention_ms) >= MOVED_RETENTION_MS:
            from processor.client.feeds.snapshot_boundary import refuse_moved  # noqa: PLC0415 - seldom needed

            refuse_moved(self._kafka, self._admin, self.topic, len(self.partitions), self._group)

    def close(self) -> None:
        """Close the connection."""
        if self._log is not None:
            self._log.close()

    def _reader(self) -> LogReader:
        """A reader of the topic; a table as it is now needs none."""
        if self._log is None:
            self._log = LogReader(self._kafka, group=self._group)
        return self._log

    def _bounds(self) -> dict[int, tuple[int, int]]:
        log = self._reader()
        return {
            partition: self._answer(lambda at=partition: log.bounds(self.topic, at, _ANSWER_TIMEOUT_S))  # type: ignore[misc]
            for partition in self.partitions
        }

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer:
        return patiently(ask, f"asking about {self.topic}", _ANSWER_TIMEOUT_S, advice=_ADVICE)


@contextmanager
def topic_facts(settings: TopicSettings, role: Role, options: Options | None) -> Iterator[TopicFacts]:
    """Connect to Kafka and look up a topic of a family.

    Args:
        settings: the settings of the topic.
        role: the role of the topic.
        options: the options of the call, see `client_properties`.

    Raises:
        Untranslatable: the options have credentials for Java only, and the settings have none.
        ConfigurationError: as in `TopicFacts`.
        BrokerUnavailable: Kafka did not answer in time.
    """
    kafka = client_properties(settings.kafka, options)
    with closing(TopicFacts(settings.kafka_topic(role), kafka, group=reader_group(settings))) as facts:
        yield facts


def reader_group(settings: TopicSettings) -> str:
    """The name that Spark's readers have for the brokers; no consumer joins this group."""
    return f"{settings.group_prefix}.spark"


def refuse_moved(settings: TopicSettings, options: Options | None) -> None:
    """Refuse a topic whose SOW topic has moved.

    Raises:
        TopicMoved: another topic has taken its place.
        BrokerUnavailable: Kafka did not answer in time.
    """
    try:
        with topic_facts(settings, "sow", options) as facts:
            facts.refuse_moved()
    except ConfigurationError:
        # There is no SOW topic, it may not be looked at, or the credentials are for Spark's client alone: the read
        # fails if that is at fault, and a stream fails at the marks themselves.
        return


def until_moved(records: DataFrame, topic: str) -> DataFrame:
    """The records of a SOW or delta topic; the query fails at the mark that says that it has moved.

    Args:
        records: rows of Spark's Kafka source.
        topic: their Kafka topic.
    """
    is_reserved = f"startswith(hex(key), '{RESERVED.hex().upper()}')"
    is_mark = f"value IS NULL AND {is_reserved} AND NOT exists(headers, header -> header.key = {literal(KIND)})"
    moved = literal(f"{topic} has moved, and gets no more records; the topic in its place is named at the end of ")
    error = f"raise_error(concat({moved}, substring(CAST(key AS STRING), 2, 300)))"
    return records.where(f"CASE WHEN {is_mark} THEN CAST({error} AS BOOLEAN) ELSE true END")
