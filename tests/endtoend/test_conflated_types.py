"""Tests of conflated topics of several message types: their records, and the sum of their deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from processor.codec import codec_of
from tests.endtoend.copies import INTERVAL_MS, Copies
from tests.endtoend.oracle import replay
from tests.endtoend.test_message_types import RECORDS, STEPS, TYPES

if TYPE_CHECKING:
    from pathlib import Path

    from processor.record import Headers
    from tests.endtoend.oracle import Seen

pytestmark = pytest.mark.broker

CHOSEN = ("msgpack", "xml", "nvfix", "binary")
JSON: list[Any] = [{"id": 7, "a": {"x": 1}, "b": [1]}, {"id": 7, "a": {"x": 2}}, {"id": 7, "b": []}]


@pytest.mark.long
def test_copies_of_every_type_deliver_last_records_and_deltas(bootstrap: str, tmp_path: Path) -> None:
    """A copy delivers the first record, then two updates, singly or folded; binary ones as full records."""
    conflated = {f"{name}_slow": {"underlying": name, "interval": f"{INTERVAL_MS}ms"} for name in CHOSEN}
    world = Copies(bootstrap, tmp_path, conflated, topics={name: {"key": ["/id"], **TYPES[name]} for name in CHOSEN})
    topics = {world.name: (JSON, {"id": 7, "a": {"x": 2}, "b": []})}
    topics |= {f"{world.name}_{name}": (STEPS[name], RECORDS[name]) for name in CHOSEN}
    try:
        _, conflater = world.work()
        with Client("test", world.config) as client:
            for topic, ((first, *_), _) in topics.items():
                client.publish(topic, first, key(topic))
            client.flush(120)
            for topic in topics:
                world.deliveries("7", 1, f"{topic}_slow")
            for topic, ((_, *deltas), _) in topics.items():
                for delta in deltas:
                    client.delta_publish(topic, delta, key(topic))
            client.flush(120)
            for topic, (_, record) in topics.items():
                check(world, client, topic, record)
        assert conflater.stop() == 0, conflater.log()
    finally:
        world.close()


def key(topic: str) -> str | None:
    """Return the key of a record without key fields."""
    return "7" if topic.endswith("_binary") else None


def check(world: Copies, client: Client, topic: str, record: Any) -> None:
    """Wait for the last record; compare a query of the copy with the sum of its deltas."""
    copy = f"{topic}_slow"
    world.wait(lambda: world.of("7", "sow", copy)[-1].headers["version"] == "3", f"the last record of {copy}")
    [told] = [message for message in client.sow(copy) if message.command == "sow"]
    assert (told.sow_key, told.data, told.version) == ("7", record, 3), copy
    delta = world.of("7", "delta", copy)
    assert replay(delta, parse=parser(world, copy)) == {"7": record}, copy
    if topic.endswith("_binary"):
        assert [each.value for each in delta] == [each.value for each in world.of("7", "sow", copy)]


def parser(world: Copies, topic: str) -> Any:
    """Return the parser of a topic's deltas."""
    codec = codec_of(world.config, topic)

    def parse(record: Seen) -> Any:
        headers: Headers = [(name, value.encode()) for name, value in record.headers.items()]
        return codec.decode_command(record.value or b"", headers, is_delta=True)

    return parse
