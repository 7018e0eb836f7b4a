"""Fetches the start offset and the lag of each partition of a share group."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.errors import BrokerUnavailable, ConfigurationError, Stop
from processor.kafka.python_client import client_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TIMEOUT_MS: Final = 15_000


class SharePosition(NamedTuple):
    """The position of a share group in one partition."""

    start: int
    """The oldest offset that may still be delivered; -1: the group has not begun."""
    lag: int
    """Offsets that are not done, leased ones included; -1: this Kafka does not tell."""


def share_positions(
    kafka: Mapping[str, str], group: str, topic: str, partitions: Sequence[int]
) -> dict[int, SharePosition]:
    """Fetch where a share group stands; partitions that it has not begun are left out.

    Args:
        kafka: librdkafka properties.
        group: the share group.
        topic: the Kafka topic.
        partitions: its partitions.

    Raises:
        BrokerUnavailable: no answer in time.
        ConfigurationError: the properties cannot be used, or kafka-python is not installed.
        Stop: Kafka refuses.
    """
    settings = client_settings(kafka)
    try:
        from kafka import KafkaAdminClient, errors  # noqa: PLC0415 - rare, and an extra
    except ModuleNotFoundError:
        raise ConfigurationError(
            "`sowstream queue status` needs the package kafka-python: pip install 'sowstream[worker]'"
        ) from None
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # Its log lines are raised as errors as well.
    try:
        client = KafkaAdminClient(**settings, bootstrap_timeout_ms=_TIMEOUT_MS, request_timeout_ms=_TIMEOUT_MS)
        try:
            answer = client._manager.run(_ask, client, group, topic, list(partitions))
        finally:
            client.close()
    except (errors.KafkaTimeoutError, errors.RequestTimedOutError, errors.NodeNotReadyError) as error:
        raise BrokerUnavailable(f"asking for the share group {group}: {error}") from error
    except errors.KafkaError as error:
        raise Stop(f"asking for the share group {group}: {error}") from error
    return _read(answer, group, errors)


async def _ask(client: Any, group: str, topic: str, partitions: list[int]) -> Any:
    """Send the request to the group's coordinator, as kafka-python's own calls about groups do."""
    from processor.queues.transport.protocol import DescribeShareGroupOffsetsRequest as Request  # noqa: PLC0415

    coordinator = await client._find_coordinator_id(group)
    group_type = Request.DescribeShareGroupOffsetsRequestGroup
    wanted = group_type.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
    request = Request(groups=[group_type(group_id=group, topics=[wanted])])
    return await client._manager.send(request, node_id=coordinator)


def _read(answer: Any, group: str, errors: Any) -> dict[int, SharePosition]:
    positions = {}
    for described in answer.groups:
        if described.error_code and errors.for_code(described.error_code) is not errors.GroupIdNotFoundError:
            raise Stop(f"asking for the share group {group}: {errors.for_code(described.error_code).__name__}")
        for topic in described.topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    lag = getattr(partition, "lag", -1)
                    positions[partition.partition_index] = SharePosition(
                        partition.start_offset, -1 if lag is None else lag
                    )
    return positions
