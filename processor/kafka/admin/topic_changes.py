"""Creates and deletes topics, and changes existing ones: their number of partitions, and single settings."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.questions import OVERDUE_S, Question, in_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.topics.family import TopicSpec


_TIMEOUT_S: Final = 15.0


def _try_to_create(
    client: AdminClient, specs: Sequence[TopicSpec], replication: int
) -> tuple[list[str], dict[str, KafkaException]]:
    """Try to create topics; returns the created ones, and those with refused settings."""
    new_topics = [
        NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=replication, config=dict(spec.config))
        for spec in specs
    ]
    created: list[str] = []
    refused: dict[str, KafkaException] = {}
    for name, future in client.create_topics(new_topics, operation_timeout=_TIMEOUT_S).items() if new_topics else ():
        try:
            future.result()
        except KafkaException as error:
            code = kafka_errors.of(error).code()
            if code in (KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG):
                refused[name] = error
            elif code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise kafka_errors.stop(error, f"creating the topic {name}") from error
        else:
            created.append(name)
    return created, refused


def create_topics(client: AdminClient, specs: Mapping[str, TopicSpec], replication: int) -> list[str]:
    """Create topics by name and return the names of the new ones; refused settings are reduced to the necessary ones.

    Raises:
        Stop: Kafka refuses.
    """
    created, refused = _try_to_create(client, list(specs.values()), replication)
    for name, error in refused.items():
        if not specs[name].least or specs[name].least == specs[name].config:
            raise kafka_errors.stop(error, f"creating the topic {name}") from error
    lesser = [specs[name]._replace(config=specs[name].least) for name in refused]
    more, refused = _try_to_create(client, lesser, replication)
    for name, error in refused.items():
        raise kafka_errors.stop(error, f"creating the topic {name}") from error
    return created + more


def delete_topics(client: AdminClient, names: Sequence[str]) -> None:
    """Delete topics; names without a topic are ignored.

    Raises:
        Stop: Kafka refuses.
    """
    for name, future in client.delete_topics(list(names), operation_timeout=_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if kafka_errors.of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise kafka_errors.stop(error, f"deleting the topic {name}") from error


class TopicChanges:
    """Changes topics of one cluster; connects with the first request."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient(properties.admin(self._kafka))

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
        Question(f"changing the settings of {topic}", asked[resource], _TIMEOUT_S + OVERDUE_S).answer()
