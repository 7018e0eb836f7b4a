"""Creates topics, and says which of them a cluster's policy refuses."""

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
    """Create topics; those it created, and those whose settings are refused."""
    wanted = [
        NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=replication, config=dict(spec.config))
        for spec in specs
    ]
    created: list[str] = []
    refused: dict[str, KafkaException] = {}
    for name, future in client.create_topics(wanted, operation_timeout=_TIMEOUT_S).items() if wanted else ():
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


def create_topics(client: AdminClient, wanted: Mapping[str, TopicSpec], replication: int) -> list[str]:
    """Create topics by name, those whose settings are refused with what they need alone; the names of those it created.

    Raises:
        Stop: Kafka refuses.
    """
    created, refused = _try_to_create(client, list(wanted.values()), replication)
    for name, error in refused.items():
        if not wanted[name].least or wanted[name].least == wanted[name].config:
            raise kafka_errors.stop(error, f"creating the topic {name}") from error
    lesser = [wanted[name]._replace(config=wanted[name].least) for name in refused]
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
