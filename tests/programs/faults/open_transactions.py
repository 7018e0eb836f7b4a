"""Finds transactions that were never ended: a reader of committed records would wait behind them for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import TopicPartition

from processor.installation.configured_pipelines import specs

if TYPE_CHECKING:
    from tests.endtoend.world import World

_MARGIN_S = 10.0  # The broker checks for expired transactions once a second, on a machine that may be busy.
_ASK_TIMEOUT_S = 15.0


def open_transactions(world: World) -> list[str]:
    """The topic partitions and group offsets with an open transaction when every transaction must have ended.

    In a partition without an open transaction the last stable offset equals the end offset: Kafka's own system test
    proves it by reading a marker record, this function asks the broker. It waits for the life time of a dead worker's
    transaction.
    """
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 3})
    places = [TopicPartition(spec.name, number) for spec in specs(world.config) for number in range(spec.partitions)]
    deadline_s = time.monotonic() + world.config.runtime.transaction_timeout_s + _MARGIN_S
    while True:
        left = _unstable(admin, places) + _pending(admin, world)
        if not left or time.monotonic() > deadline_s:
            return [f"transaction left open: {what}" for what in left]
        time.sleep(0.2)  # Between two polls; the observed state decides.


def _unstable(admin: AdminClient, places: list[TopicPartition]) -> list[str]:
    ends = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)
    stable = _ends(admin, places, IsolationLevel.READ_COMMITTED)
    return [
        f"{topic} partition {partition} from offset {stable[topic, partition]} on, of {end}"
        for (topic, partition), end in ends.items()
        if stable[topic, partition] < end
    ]


def _ends(admin: AdminClient, places: list[TopicPartition], level: IsolationLevel) -> dict[tuple[str, int], int]:
    asked = {place: OffsetSpec.latest() for place in places}
    futures = admin.list_offsets(asked, isolation_level=level, request_timeout=_ASK_TIMEOUT_S)
    return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}


def _pending(admin: AdminClient, world: World) -> list[str]:
    """The groups with input offsets in an open transaction, for which Kafka refuses to return stable offsets."""
    left = []
    for name in [*world.config.topics, *world.config.conflated]:
        group = f"{world.config.application_id}.{name}"
        request = [ConsumerGroupTopicPartitions(group)]
        (future,) = admin.list_consumer_group_offsets(
            request, require_stable=True, request_timeout=_ASK_TIMEOUT_S
        ).values()
        try:
            future.result()
        except KafkaException as error:
            left.append(f"offsets of {group}: {error.args[0].str()}")
    return left
