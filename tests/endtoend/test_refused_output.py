"""What Kafka will never take stops the worker with the reason; it is not tried again for ever."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from processor.kafka.admin import Admin

if TYPE_CHECKING:
    from tests.endtoend.world import Worker, World

pytestmark = pytest.mark.broker


def test_a_record_that_the_topic_does_not_take(world: World) -> None:
    """Somebody made the topic's limit smaller while the worker ran."""
    worker = _started(world)
    setting = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, f"{world.name}.sow", incremental_configs=[setting])
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.incremental_alter_configs([topic]).values():
        future.result()
    world.publish([(b"1", {"id": 1, "noise": random.Random(1).randbytes(60_000).hex()}, {})])
    assert worker.process.wait(timeout=12) == 1
    assert "max.message.bytes" in worker.log()


def test_a_topic_that_was_deleted(world: World) -> None:
    """Somebody removed an output while the worker ran."""
    worker = _started(world)
    Admin(world.config.kafka).delete([f"{world.name}.delta"])
    world.publish([(b"%d" % number, {"id": number}, {}) for number in range(8)])
    assert worker.process.wait(timeout=12) == 2
    assert "the topic does not exist" in worker.log()


def _started(world: World) -> Worker:
    worker = world.start()
    world.wait(lambda: worker.log().count('"event": "restored"') == 4, "the worker starting")
    worker.is_expected_to_end = True
    return worker
