"""Tests that Kafka's own console consumer, in Java, reads correct data."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from tests.endtoend.oracle import Seen, fold, last_per_key, replay
from tests.endtoend.world import random_commands

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker


def console(world: World, role: str, family: str | None = None) -> list[Seen]:
    """Return the output of `kafka-console-consumer` for a topic, read committed."""
    wanted = len(world.read(role, family))
    patience_s = 4
    while len(seen := _printed(world, f"{family or world.name}.{role}", patience_s)) < wanted:
        # It ends when nothing came for so long, be it because it was joining its group.
        patience_s *= 2
        assert patience_s <= 32, f"{len(seen)} of {wanted} records"
    return seen


def _printed(world: World, topic: str, patience_s: int) -> list[Seen]:
    """Return the output up to the consumer's timeout."""
    program = [str(find_java()), "-Xmx128m", "-cp", class_path(), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    options: dict[str, Any] = {
        "--bootstrap-server": world.bootstrap,
        "--topic": topic,
        "--isolation-level": "read_committed",
        "--timeout-ms": patience_s * 1000,
    }
    formats = ("print.key", "print.headers", "print.partition", "print.offset")
    arguments = [str(word) for option in options.items() for word in option]
    for name in formats:
        arguments += ["--formatter-property", f"{name}=true"]
    run = subprocess.run(
        [*program, "--from-beginning", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    seen = []
    for line in run.stdout.splitlines():
        if not line.startswith("Partition:"):
            continue  # It also talks about itself.
        partition, offset, headers, key, value = line.split("\t")
        seen.append(
            Seen(
                int(partition.removeprefix("Partition:")),
                int(offset.removeprefix("Offset:")),
                key.encode(),
                None if value == "null" else value.encode(),
                _headers(headers),
            )
        )
    return sorted(seen, key=lambda record: (record.partition, record.offset))


def _headers(text: str) -> dict[str, str]:
    """Parse `version:1,removed:["/a","/b"]` as the console prints it; a value may contain commas."""
    headers: dict[str, str] = {}
    name = ""
    for part in text.split(","):
        head, colon, rest = part.partition(":")
        if colon and head.isidentifier():
            name, headers[head] = head, rest
        else:
            headers[name] += "," + part
    return headers


@pytest.mark.long
def test_kafkas_own_console_consumer_reads_the_same_world(world: World) -> None:
    """SOW and delta, read committed, contain no record of an aborted transaction."""
    world.publish(random_commands(71, 3_000, 60))
    world.start()
    world.settle()
    rogue = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": f"{world.name}-rogue"})
    rogue.init_transactions()
    rogue.begin_transaction()
    rogue.produce(f"{world.name}.sow", json.dumps({"id": "rolled back"}), b"1", 0, headers={"version": "9"})
    rogue.flush()
    rogue.abort_transaction()

    expected = fold(world.read("publish"))
    assert last_per_key(console(world, "sow")) == expected
    assert replay(console(world, "delta")) == expected
