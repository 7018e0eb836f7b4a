"""Tests of an input whose oldest records were deleted by retention."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from processor.kafka.clients.group_consumer import GroupConsumer
from tests.runtime.loop.turned_thread import Assigned
from tests.waiting import until

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

_JOINS = 6  # Each one alone may be lucky: a fetch of offset 0 had to leave before the pause.
_PAUSED_S = 0.3


def test_a_partition_that_waits_for_its_start_asks_for_no_deleted_offset(world: World) -> None:
    """While a partition is restored its input is not read; then reading begins at the given offset."""
    topic = f"{world.name}.publish"
    for _ in range(2):
        world.publish([(b"%d" % number, {"id": number}, {}) for number in range(40)])
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, number, 1) for number in range(4)]).values():
        future.result()
    for joined in range(_JOINS):
        read_from_two(world, topic, f"{world.name}-{joined}")


def read_from_two(world: World, topic: str, group: str) -> None:
    """Join a group, wait a moment, and read each partition from offset 2 on."""
    listener = Assigned()
    consumer = GroupConsumer(world.config.kafka, group=group, topic=topic, session_timeout_s=6, listener=listener)
    read: dict[int, int | None] = {}

    def reads_all() -> bool:
        for message in consumer.poll(100, 0.02):
            read.setdefault(message.partition() or 0, message.offset())
        return len(read) == len(listener.partitions)

    try:
        until(lambda: consumer.poll(100, 0.02) == [] and listener.partitions, "an assignment", pause_s=0)
        paused_until_s = time.monotonic() + _PAUSED_S
        while time.monotonic() < paused_until_s:
            assert consumer.poll(100, 0.02) == []
        for partition in listener.partitions:
            consumer.begin(partition, 2)
        until(reads_all, lambda: read, pause_s=0)
        assert read == dict.fromkeys(range(4), 2)
        assert consumer.take_unreadable() == {}
    finally:
        consumer.close()
