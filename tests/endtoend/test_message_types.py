"""Several message types through workers and conflated topics: last records, and the sum of their deltas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from processor.codec import codec_of
from tests.endtoend.copies import INTERVAL_MS, Copies
from tests.endtoend.oracle import replay
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.record import Headers
    from tests.endtoend.oracle import Seen


pytestmark = pytest.mark.broker

ORDER = str(Path(__file__).parents[2] / "schemas" / "order.avsc")
NEW = {"id": 7, "customer": "Ada", "item": "lamp", "qty": 3, "state": "new", "inventory": None, "credit": None}

TYPES: dict[str, dict[str, Any]] = {
    "avro": {"message_type": "avro", "schema": ORDER},
    "msgpack": {"message_type": "msgpack"},
    "xml": {"message_type": "xml", "key": ["/order/@id"]},
    "nvfix": {"message_type": "nvfix"},
    "composite": {"message_type": "composite-local", "parts": ["json", "xml"], "key": ["/0/id"]},
    "binary": {"message_type": "binary", "key": "explicit"},
}

STEPS: dict[str, list[Any]] = {
    "avro": [NEW, {"id": 7, "state": "held"}, {"id": 7, "qty": 4}],
    "msgpack": [{"id": 7, "a": {"x": b"\x00", "y": [1, None]}}, {"id": 7, "a": {"z": 2.5}}, {"id": 7, "a": {"x": b""}}],
    "xml": [
        {"order": {"@id": "7", "line": ["tea", "milk"], "px": {"@in": "EUR", "#text": "2"}}},
        {"order": {"@id": "7", "px": {"#text": "3"}}},
        {"order": {"@id": "7", "line": ["tea"]}},
    ],
    "nvfix": [{"id": "7", "n": "1", "leg": ["a", "b"]}, {"id": "7", "n": ""}, {"id": "7", "leg": ["b", "a"]}],
    "composite": [
        {"0": {"id": 7, "a": {"x": 1}}, "1": {"r": {"@q": "1", "t": "u"}}},
        {"0": {"id": 7, "a": {"y": None, "z": 2}}},
        {"0": {"id": 7}, "1": {"r": {"t": "v"}}},
    ],
    "binary": [b"\x00\xff", b"", b"{"],
}
"""The records published under one key, each after the first a delta."""

RECORDS: dict[str, Any] = {
    "avro": NEW | {"state": "held", "qty": 4},
    "msgpack": {"id": 7, "a": {"x": b"", "y": [1, None], "z": 2.5}},
    "xml": {"order": {"@id": "7", "line": ["tea"], "px": {"@in": "EUR", "#text": "3"}}},
    "nvfix": {"id": "7", "n": "", "leg": ["b", "a"]},
    "composite": {"0": {"id": 7, "a": {"x": 1, "z": 2}}, "1": {"r": {"@q": "1", "t": "v"}}},
    "binary": b"{",
}
"""The record in the end, worked out by hand."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a topic of each message type for one worker."""
    others = {f"{unique}_{name}": {"key": ["/id"], "partitions": 1, **settings} for name, settings in TYPES.items()}
    made = World(bootstrap, tmp_path, unique, others=others, partitions=1)
    yield made
    made.close()


def test_records_of_every_type_are_merged_and_their_deltas_add_up(world: World) -> None:
    """A query of the SOW topic and the sum of the delta topic are the expected records."""
    world.start()
    with Client("test", world.config) as client:
        for name, (first, *deltas) in STEPS.items():
            topic = f"{world.name}_{name}"
            key = "7" if name == "binary" else None
            client.publish(topic, first, key, ack="persisted")
            for delta in deltas:
                client.delta_publish(topic, delta, key, ack="persisted")
        client.flush(120)
        for name, expected in RECORDS.items():
            topic = f"{world.name}_{name}"
            [told] = [message for message in client.sow(topic) if message.command == "sow"]
            assert (told.sow_key, told.data, told.version) == ("7", expected, 3), name
            assert replay(world.read("delta", topic), parse=_parser(world, topic)) == {"7": expected}, name


def _parser(world: World, topic: str) -> Any:
    codec = codec_of(world.config, topic)

    def parse(record: Seen) -> Any:
        headers: Headers = [(name, value.encode()) for name, value in record.headers.items()]
        return codec.decode_command(record.value or b"", headers, is_delta=True)

    return parse


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
