"""Creates topics, and says which of them a cluster's policy refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from processor.kafka import failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka.admin import AdminClient

    from processor.topics import TopicSpec

_TIMEOUT_S: Final = 15.0


def try_to_create(
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
            code = failure.of(error).code()
            if code in (KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG):
                refused[name] = error
            elif code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failure.stop(error, f"creating the topic {name}") from error
        else:
            created.append(name)
    return created, refused
