"""Changes existing topics: their number of partitions, and single settings."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions

from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.answers import in_time

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S: Final = 15.0


class TopicChanges:
    """Changes topics of one cluster; connects with the first request."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient(properties.common(self._kafka))

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to this number; one that has as many stays as it is.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        asked = self._client.create_partitions([NewPartitions(topic, partitions)], operation_timeout=_TIMEOUT_S)
        done = in_time(asked[topic], _TIMEOUT_S)
        if isinstance(done, KafkaException) and kafka_errors.of(done).code() != KafkaError.INVALID_PARTITIONS:
            raise kafka_errors.stop(done, f"adding partitions to {topic}") from done

    def set_config(self, topic: str, changes: Mapping[str, str]) -> None:
        """Set settings of a topic, and leave its others as they are.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        asked = self._client.incremental_alter_configs([resource], request_timeout=_TIMEOUT_S)
        done = in_time(asked[resource], _TIMEOUT_S)
        if isinstance(done, KafkaException):
            raise kafka_errors.stop(done, f"changing the settings of {topic}") from done
