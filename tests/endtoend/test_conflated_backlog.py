"""Tests a conflated topic with a backlog that Kafka has compacted: it delivers the last states."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.endtoend.oracle import last_per_key, replay
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long]

KEYS = 200
UPDATES = 100_000
AGE_MS = 60_000
"""How old the backlog is: far more than an interval, which must not become longer by it."""
INTERVAL_S = 5
"""Longer than an idle machine takes to read the backlog, so that each key is due once there."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create topics whose old records Kafka compacts as soon as it can."""
    eager = {
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "1000",
    }
    made = World(bootstrap, tmp_path, unique, interval=f"{INTERVAL_S}s", config=eager)
    yield made
    made.close()


def feed(world: World, first: int, count: int, age_ms: int) -> None:
    """Write old SOW records as a worker does."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "partitioner": "murmur2_random", "linger.ms": 20})
    padding = "x" * 200
    for n in range(first, first + count):
        key, version = n % KEYS, n // KEYS + 1
        value = json.dumps({"id": key, "n": n, "padding": padding}).encode()
        producer.produce(
            f"{world.name}.sow",
            value,
            str(key).encode(),
            headers=[("version", b"%d" % version)],
            timestamp=int(time.time() * 1000) - age_ms,
        )
        producer.poll(0)
    assert producer.flush(120) == 0


def arrived(world: World) -> bool:
    """Return whether the copy has the last state of every key."""
    return last_per_key(world.read("sow", world.conflated)) == last_per_key(world.read("sow"))


def test_a_compacted_backlog_is_delivered_as_last_states(world: World) -> None:
    """Each key is delivered once for many updates, and later updates are delivered as usual."""
    feed(world, 0, KEYS, 0)
    conflater = world.start("conflate", world.conflated)
    world.wait(lambda: arrived(world), "the first states arriving")
    assert conflater.stop() == 0, conflater.log()

    feed(world, KEYS, UPDATES, AGE_MS)
    world.wait(lambda: len(world.read("sow")) < UPDATES / 2, "compaction")
    begun_s = time.monotonic()
    conflater = world.start("conflate", world.conflated)
    world.wait(lambda: arrived(world), "the last states arriving")
    intervals = (time.monotonic() - begun_s) // INTERVAL_S

    by_key = last_per_key(world.read("sow", world.conflated))
    assert len(by_key) == KEYS
    told = [record for record in world.read("sow", world.conflated) if record.headers.get("kind") != "insert"]
    # Once, and on a machine that needs longer to read the backlog once in each interval.
    assert KEYS <= len(told) <= KEYS * max(1, intervals)
    read = sum(int(record.headers.get("conflated", 1)) for record in told)
    print(f"{UPDATES:,} updates, {read:,} left to be read, {len(told):,} told")
    assert read < UPDATES / 2

    feed(world, KEYS + UPDATES, KEYS, 0)
    world.wait(lambda: arrived(world), "the next states arriving")
    assert replay(world.read("delta", world.conflated)) == last_per_key(world.read("sow"))
    assert conflater.stop() == 0, conflater.log()
