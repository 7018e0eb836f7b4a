"""Creates and deletes topics, and detects settings that the cluster's policy refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from processor.kafka import errors as kafka_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka.admin import AdminClient

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
