"""Tests of several message types through one worker: merged records, and the sum of their deltas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from processor.codec import codec_of
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
