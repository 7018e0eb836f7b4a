"""Makes sure of a Kafka topic before it is used: a broker would silently create a missing one, and wrongly."""

from __future__ import annotations

import threading

from processor.errors import ConfigurationError
from processor.kafka.admin import Admin


class TopicLookup:
    """What is known of the cluster's topics; asked once for each topic. Any thread."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._partitions: dict[str, int] = {}
        self._lock = threading.Lock()

    def partitions(self, kafka_topic: str) -> int:
        """The number of partitions of a topic.

        Raises:
            ConfigurationError: it does not exist.
            BrokerUnavailable: no answer in time.
        """
        with self._lock:
            if kafka_topic not in self._partitions:
                self._partitions |= self._admin.cluster().topics
            if kafka_topic not in self._partitions:
                raise ConfigurationError(
                    f"the Kafka topic {kafka_topic} does not exist; `sowstream topics apply` creates it"
                )
            return self._partitions[kafka_topic]

    def forget(self, kafka_topic: str) -> None:
        """Look again the next time: the topic may have been made anew."""
        with self._lock:
            self._partitions.pop(kafka_topic, None)
