"""Tests of producers with any partitioner that publish deltas of the same keys: each key lives in one partition."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from confluent_kafka import Producer

from processor.kafka.partitioner import partition_for
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from tests.endtoend.oracle import last_per_key, replay

if TYPE_CHECKING:
    from tests.endtoend.oracle import Seen
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

PARTITIONS = 4
ROUNDS = 6
KILLED_AFTER = (1, 3)


class Publisher(Protocol):
    """A producer of one kind, which publishes deltas as `{"id": key, <field>: number}`."""

    def publish(self, key: int, delta: dict[str, int]) -> None:
        """Send one delta."""

    def close(self) -> None:
        """Wait until Kafka has all of them."""


class Librdkafka:
    """A confluent_kafka producer, as its user configures it."""

    def __init__(self, world: World, has_key: bool = True, **settings: str) -> None:
        self._producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 5, **settings})
        self._topic, self._has_key = f"{world.name}.publish", has_key

    def publish(self, key: int, delta: dict[str, int]) -> None:
        """Send one delta, under its key or under none."""
        self._producer.produce(self._topic, json.dumps(delta), b"%d" % key if self._has_key else None)
        self._producer.poll(0)

    def close(self) -> None:
        """Wait for the acknowledgements."""
        assert self._producer.flush(60) == 0


class JavaConsole:
    """Kafka's own console producer, which reads `key<TAB>value` lines."""

    def __init__(self, world: World) -> None:
        self._process = subprocess.Popen(
            [
                str(find_java()), "-Xmx128m", "-cp", class_path(), "org.apache.kafka.tools.ConsoleProducer",
                "--bootstrap-server", world.bootstrap, "--topic", f"{world.name}.publish",
                "--reader-property", "parse.key=true", "--reader-property", "key.separator=\t",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def publish(self, key: int, delta: dict[str, int]) -> None:
        """Write one line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{key}\t{json.dumps(delta)}\n")

    def close(self) -> None:
        """End its input, and wait until it has sent everything."""
        _, said = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, said


@pytest.mark.parametrize("keys", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_every_key_lives_in_one_partition_with_any_partitioner(world: World, keys: int) -> None:
    """Five kinds of producers and two killed workers leave one state of each key, equal to an independent fold."""
    publishers: dict[str, Publisher] = {
        "librdkafka": Librdkafka(world),
        "murmur2": Librdkafka(world, partitioner="murmur2_random"),
        "random": Librdkafka(world, partitioner="random"),
        "keyless": Librdkafka(world, has_key=False),
        "console": JavaConsole(world),
    }
    expected: dict[str, dict[str, Any]] = defaultdict(dict)
    workers = [world.start(), world.start()]
    for number in range(ROUNDS):
        for key in range(keys):
            for name, publisher in publishers.items():
                # Only a producer whose partitioner goes by the key keeps the order of a key's records (rule 3).
                field = name if name in {"librdkafka", "murmur2", "console"} else f"{name}{number}"
                publisher.publish(key, {"id": key, field: number})
                expected[str(key)] |= {"id": key, field: number}
        if number in KILLED_AFTER:
            workers.pop(0).kill()
            workers.append(world.start())
    for publisher in publishers.values():
        publisher.close()
    world.settle()

    sow, delta = world.read("sow"), world.read("delta")
    assert two_homes(world.read("publish")) > keys // 4  # The producers did not agree.
    assert two_homes(sow) == two_homes(delta) == 0
    assert all(record.partition == partition_for(record.key or b"", PARTITIONS) for record in sow)
    assert last_per_key(sow) == replay(delta) == expected
    assert world.read("dlq") == []


def two_homes(records: list[Seen]) -> int:
    """Count the keys that are in more than one partition."""
    homes: defaultdict[bytes, set[int]] = defaultdict(set)
    for record in records:
        if record.key is not None:
            homes[record.key].add(record.partition)
    return sum(len(partitions) > 1 for partitions in homes.values())
