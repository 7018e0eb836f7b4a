"""The topic directory on Kafka: reads it to its end, and writes descriptions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.producers.publisher import Publisher
from processor.kafka.readers.log_reader import BOUNDED_FETCH_WAIT_MS, LogReader
from processor.kafka.readers.range_reader import read_up_to
from processor.topics.family import directory_spec
from processor.wire.topic_description import Description, NewerFormat, Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.first_contact import Cluster
    from processor.kafka.message import Message

READ_TIMEOUT_S: Final = 10.0
"""Longest wait for an answer, and for the next record."""

log = logging.getLogger("sowstream.directory")


class DirectoryEntries(NamedTuple):
    """The content of the directory."""

    descriptions: Mapping[str, Description]
    """The description of each topic, by name."""
    unreadable: Mapping[str, str]
    """Topics whose description this version cannot use, with the reason."""
    newer: frozenset[str] = frozenset()
    """Those of them that a newer version of Sowstream has written."""


class TopicDirectory:
    """The topic directory of one cluster. One thread only."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, *, prefix: str = "") -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            admin: administration of the same cluster.
            prefix: the prefix of all topic names of the installation.
        """
        self.spec = directory_spec(prefix)
        """The Kafka topic as it should be."""
        self._kafka = kafka
        self._admin = admin

    @property
    def topic(self) -> str:
        """The Kafka topic."""
        return self.spec.name

    def exists(self, cluster: Cluster) -> bool:
        """Return whether a cluster has a directory that we are allowed to see."""
        return self.topic in cluster.topics

    def read(self, timeout_s: float = READ_TIMEOUT_S) -> DirectoryEntries | None:
        """Read all present descriptions; None if there is no directory.

        Raises:
            BrokerUnavailable: no answer in time.
            ConfigurationError: this user has no right to see it.
            Stop: Kafka refuses, or the topic cannot be read to its end in time.
        """
        partitions = self._admin.cluster(timeout_s).topics.get(self.topic)
        if partitions is None:
            # The list of all topics lacks those that this user has no right to see; by name, Kafka says so.
            partitions = self._admin.partitions_of(self.topic, timeout_s)
        if partitions is None:
            return None
        latest: dict[str, bytes | None] = {}
        for message in self._messages(range(partitions), timeout_s):
            latest[(message.key() or b"").decode(errors="replace")] = message.value()
        return _entries(latest)

    def write(self, descriptions: Mapping[str, Description | None]) -> None:
        """Write descriptions; None removes that of a topic.

        Raises:
            BrokerUnavailable: Kafka has not acknowledged them in time.
            Stop: Kafka refuses.
        """
        publisher = Publisher(self._kafka)
        for name, description in descriptions.items():
            publisher.send(self.topic, name.encode(), None if description is None else description.to_json())
        publisher.flush(READ_TIMEOUT_S)

    def _messages(self, partitions: range, timeout_s: float) -> list[Message]:
        """Every committed record, up to the present ends of the partitions."""
        ends = self._admin.end_offsets(self.topic, partitions, timeout_s)
        # The group is never joined; it has the topic's name, so that one ACL grants both.
        reader = LogReader(self._kafka, group=self.topic, fetch_wait_ms=BOUNDED_FETCH_WAIT_MS)
        return read_up_to(reader, self.topic, ends, stall_timeout_s=timeout_s)


def _entries(latest: Mapping[str, bytes | None]) -> DirectoryEntries:
    descriptions, unreadable, newer = {}, {}, set()
    for name, value in latest.items():
        if value is None:
            continue
        try:
            descriptions[name] = Description.from_json(value)
        except Unreadable as error:
            unreadable[name] = str(error)
            if isinstance(error, NewerFormat):
                newer.add(name)
    return DirectoryEntries(descriptions, unreadable, frozenset(newer))
