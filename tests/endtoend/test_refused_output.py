"""Tests of outputs that Kafka refuses: the record is rejected; for a missing topic the worker stops."""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from processor.kafka.admin.admin import Admin
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.endtoend.world import Worker, World

pytestmark = pytest.mark.broker


@pytest.mark.long
def test_a_record_that_the_topic_does_not_take(world: World) -> None:
    """After the topic's limit was reduced the large record is rejected, and all others are merged."""
    worker = _started(world)
    _limit(world, "sow", 20_000)
    noise = random.Random(1)
    world.publish([(b"%d" % n, {"id": n, "noise": noise.randbytes(5_000).hex()}, {}) for n in range(40)])
    world.publish([(b"1", {"id": 1, "noise": noise.randbytes(60_000).hex()}, {"trace": "it"})])
    # It is larger than the limit before it is compressed, and fits.
    world.publish([(b"2", {"id": 2, "noise": "x" * 60_000}, {})])
    world.publish([(b"%d" % n, {"id": n, "after": True}, {}) for n in range(40)])
    world.settle()
    states = {record.key: json.loads(record.value or b"") for record in world.read("sow")}
    assert {key for key, state in states.items() if state["after"]} == {b"%d" % n for n in range(40)}
    assert states[b"2"]["noise"] == "x" * 60_000
    (letter,) = world.read("dlq")
    assert (letter.key, letter.headers["dlq_reason"], letter.headers["trace"]) == (b"1", "too_large", "it")
    assert len(letter.value or b"") > 120_000
    assert worker.process.poll() is None


def test_a_dead_letter_that_its_topic_does_not_take_any_more(world: World) -> None:
    """After the limit of the dead-letter topic was reduced dead letters carry less."""
    worker = _started(world)
    _limit(world, "dlq", 40_000)
    bad = random.Random(2).randbytes(200_000)
    world.publish([(b"1", bad, {"trace": "it"}), (b"1", {"id": 1}, {})])
    world.settle()
    (letter,) = world.read("dlq")
    headers = letter.headers
    assert (headers["dlq_reason"], headers["trace"]) == ("undecodable", "it")
    assert (headers["dlq_bytes"], headers["dlq_truncated"]) == ("200000", "true")
    assert headers["dlq_sha256"] == hashlib.sha256(bad).hexdigest()
    assert 20_000 < len(letter.value or b"") < 40_000
    assert bad.startswith(letter.value or b"?")
    assert len(world.read("sow")) == 1
    assert worker.process.poll() is None


def test_a_topic_that_was_deleted(world: World) -> None:
    """An output topic is deleted while the worker runs."""
    worker = _started(world)
    Admin(world.config.kafka).delete([f"{world.name}.delta"])
    world.publish([(b"%d" % number, {"id": number}, {}) for number in range(8)])
    assert worker.process.wait(timeout=PATIENCE_S) == 2
    assert "the topic does not exist" in worker.log()


def _limit(world: World, role: str, bytes_max: int) -> None:
    """Set the largest batch of a topic."""
    setting = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, f"{world.name}.{role}", incremental_configs=[setting])
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.incremental_alter_configs([topic]).values():
        future.result()


def _started(world: World) -> Worker:
    worker = world.start()
    world.wait(lambda: worker.log().count('"event": "restored"') == 4, "the worker starting")
    worker.is_expected_to_end = True
    return worker
