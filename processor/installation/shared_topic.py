"""The client of a small compacted topic that an installation shares: reads it to its end, writes and follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.clients.log_reader import BOUNDED_FETCH_WAIT_MS, LogReader, Position, read_up_to
from processor.kafka.clients.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.topics.family import TopicSpec
    from processor.topics.problem import ActualTopic

READ_TIMEOUT_S: Final = 10.0
"""Longest wait for an answer, and for the next record."""


class SharedRecords(NamedTuple):
    """The content of a shared topic."""

    latest: Mapping[bytes, bytes | None]
    """The last value of each key; None: the key was removed."""
    ends: Mapping[int, int]
    """The end of each partition when it was read."""


class SharedTopic:
    """The client of one shared topic. One thread only."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, spec: TopicSpec) -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            admin: administration of the same cluster.
            spec: the Kafka topic as it should be.
        """
        self.spec = spec
        """The Kafka topic as it should be."""
        self._kafka = kafka
        self._admin = admin

    @property
    def topic(self) -> str:
        """The Kafka topic."""
        return self.spec.name

    def describe(self) -> ActualTopic | None:
        """The topic as it is, with the right that this user lacks; None if it does not exist.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        # By name: the cluster's list of all topics lacks those that this user has no right to see.
        return self._admin.describe_topics([self.topic], shows_hidden=True).get(self.topic)

    def read_records(self, timeout_s: float | None = None) -> SharedRecords | None:
        """Read the committed records, up to the present ends of the partitions; None if there is no topic.

        Args:
            timeout_s: longest wait for an answer, and for the next record; None: as the administration's requests, and
                `READ_TIMEOUT_S`.

        Raises:
            BrokerUnavailable: no answer in time.
            ConfigurationError: this user has no right to see it.
            Stop: Kafka refuses, or the topic cannot be read to its end in time.
        """
        # By name: the cluster's list of all topics lacks those that this user has no right to see.
        partitions = self._admin.partitions_of(self.topic, timeout_s)
        if partitions is None:
            return None
        messages, ends = self._read_topic(self.topic, partitions, timeout_s)
        return SharedRecords({message.key() or b"": message.value() for message in messages}, ends)

    def write_records(self, records: Iterable[tuple[bytes, bytes | None]], *, partition: int | None = None) -> None:
        """Write records, for a partition if one is given; the value None removes a key.

        Raises:
            BrokerUnavailable: Kafka has not acknowledged them in time.
            Stop: Kafka refuses.
        """
        publisher = Publisher(self._kafka)
        for key, value in records:
            publisher.send(self.topic, key, value, partition=partition)
        publisher.flush(READ_TIMEOUT_S)

    def follow(self, offset: int) -> LogReader:
        """Create a reader of the first partition from an offset on, which the caller closes."""
        reader = self._reader()
        reader.add([Position(self.topic, 0, offset)])
        return reader

    def _read_topic(self, topic: str, partitions: int, timeout_s: float | None) -> tuple[list[Message], dict[int, int]]:
        """The committed records of a small topic, by partition, and the ends up to which they were read."""
        ends = self._admin.end_offsets(topic, range(partitions), timeout_s)
        reader = self._reader(fetch_wait_ms=BOUNDED_FETCH_WAIT_MS)
        return read_up_to(reader, topic, ends, stall_timeout_s=timeout_s or READ_TIMEOUT_S), ends

    def _reader(self, fetch_wait_ms: int | None = None) -> LogReader:
        # The group is never joined; it has the topic's name, so that one ACL grants both.
        return LogReader(self._kafka, group=self.topic, fetch_wait_ms=fetch_wait_ms)
