"""The check of the keys of a transaction that was ended: readers see some right, and some not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from processor.kafka.admin.admin import Admin
from processor.kafka.transactions.open_ranges import OpenRange
from processor.tools.open_transactions.aftermath import Aftermath, KeyInQuestion
from tests.endtoend.world import World

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker

_PARTITION = 2


def _write(world: World, role: str, records: list[tuple[bytes, int, str]], *, value: bytes | None = b"{}") -> int:
    """Write records of one partition: key, version and kind; returns the offset after them."""
    producer = Producer({"bootstrap.servers": world.bootstrap})
    for key, version, kind in records:
        headers = {"version": str(version), **({"kind": kind} if kind else {})}
        payload = None if kind == "delete" and role == "sow" else value
        producer.produce(f"{world.name}.{role}", payload, key, _PARTITION, headers=headers)
    assert producer.flush(30) == 0
    return Admin(world.config.kafka).end_offsets(f"{world.name}.{role}", [_PARTITION])[_PARTITION]


def test_each_key_is_judged_by_its_versions(bootstrap: str, tmp_path: Path, unique: str):
    """A delta that is missing at the end, or in between, is a problem of its key alone."""
    world = World(bootstrap, tmp_path, unique)
    before = [(b"right", 1, "insert"), (b"short", 1, "insert"), (b"gap", 1, "insert"), (b"gone", 1, "insert")]
    begin = _write(world, "sow", before)
    _write(world, "delta", before)
    begin_of_deltas = _write(world, "delta", [])
    end = _write(world, "sow", [(b"right", 2, ""), (b"short", 3, ""), (b"gap", 3, ""), (b"gone", 2, "delete")])
    _write(world, "delta", [(b"right", 2, ""), (b"short", 2, ""), (b"gap", 3, ""), (b"gone", 2, "delete")])
    since_ms = int(time.time() * 1000)
    ranges = [OpenRange(f"{unique}.sow", _PARTITION, begin, end, since_ms)]
    aftermath = Aftermath(world.config, Admin(world.config.kafka), unique, ranges)
    # Versions are not compared in the middle of the next transaction of a worker that goes on.
    _write(world, "sow", [(b"right", 3, "")])
    assert begin_of_deltas == len(before)
    assert aftermath.read_versions() == [
        KeyInQuestion(_PARTITION, b"gap", 3, 3, 3, "a delta for version 2 follows version 1"),
        KeyInQuestion(_PARTITION, b"gone", 0, 0, 0, ""),
        KeyInQuestion(_PARTITION, b"right", 2, 2, 2, ""),
        KeyInQuestion(_PARTITION, b"short", 3, 3, 2, "SOW has version 3, the deltas end with version 2"),
    ]
    world.close()


def test_messages_of_a_topic_without_a_sow_have_no_versions(bootstrap: str, tmp_path: Path, unique: str):
    """Messages of a topic without a SOW have no versions; their keys are listed all the same."""
    world = World(bootstrap, tmp_path, unique, sow=False, more={"conflated": {}})
    end = _write(world, "delta", [(b"a", 0, ""), (b"b", 0, "")])
    ranges = [OpenRange(f"{unique}.delta", _PARTITION, 0, end, int(time.time() * 1000))]
    aftermath = Aftermath(world.config, Admin(world.config.kafka), unique, ranges)
    assert [(key.key, key.sow, key.problem) for key in aftermath.read_versions()] == [
        (b"a", None, ""),
        (b"b", None, ""),
    ]
    world.close()
