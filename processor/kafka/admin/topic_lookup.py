"""Checks that a Kafka topic exists before it is used: a broker might create a missing one, with wrong settings."""

from __future__ import annotations

import threading
from collections.abc import Callable

from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.connection import Cluster


class TopicLookup:
    """The partition counts of the cluster's topics; requested once. Any thread."""

    def __init__(self, admin: Admin, on_first_look: Callable[[Cluster], None] | None = None) -> None:
        """Start without any request.

        Args:
            admin: administration of the cluster.
            on_first_look: called with the first answer.
        """
        self._admin = admin
        self._on_first_look = on_first_look
        self._partitions: dict[str, int] = {}
        self._lock = threading.Lock()

    def partitions(self, kafka_topic: str) -> int:
        """The number of partitions of a topic.

        Raises:
            ConfigurationError: the topic does not exist, or this user has no right to see it.
            BrokerUnavailable: no answer in time.
        """
        with self._lock:
            if kafka_topic not in self._partitions:
                cluster = self._admin.cluster()
                self._partitions |= cluster.topics
                on_first_look, self._on_first_look = self._on_first_look, None
                if on_first_look is not None:
                    on_first_look(cluster)
            if kafka_topic not in self._partitions:
                # The list of all topics lacks those that this user has no right to see; by name, Kafka says so.
                count = self._admin.partitions_of(kafka_topic)
                if count is not None:
                    self._partitions[kafka_topic] = count
            if kafka_topic not in self._partitions:
                raise ConfigurationError(
                    f"the Kafka topic {kafka_topic} does not exist; `sowstream topics apply` creates it"
                )
            return self._partitions[kafka_topic]

    def forget(self, kafka_topic: str) -> None:
        """Look a topic up again the next time, as it may have been recreated."""
        with self._lock:
            self._partitions.pop(kafka_topic, None)
