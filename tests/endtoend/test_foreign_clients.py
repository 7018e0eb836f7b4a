"""Kafka's own clients in Java, and producers with any partitioner: keys, large records, and what a consumer prints."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from confluent_kafka import Producer

from processor.kafka.partitioner import partition_for
from processor.operate.letter_replay import DeadLetterReplay
from processor.operate.waiting_letters import LetterSelection, survey
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from tests.endtoend.oracle import Seen, fold, last_per_key, replay
from tests.endtoend.world import random_commands

if TYPE_CHECKING:
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


TEXT = "a large record, which compresses well; "
LARGE = json.dumps({"id": 2, "text": TEXT * (20 * 1024 * 1024 // len(TEXT))})
LIMIT = str(64 * 1024 * 1024)


def _publish(world: World, *lines: str) -> None:
    """Send `key<TAB>value` lines with Kafka's own console producer, packed by gzip."""
    command = [
        str(find_java()), "-Xmx512m", "-cp", class_path(), "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server", world.bootstrap, "--topic", f"{world.name}.publish", "--compression-codec", "gzip",
        "--command-property", f"max.request.size={LIMIT}", "--command-property", f"buffer.memory={LIMIT}",
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=\t",
    ]  # fmt: skip
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_record_of_20_mib_is_rejected_and_its_neighbours_are_merged(world: World) -> None:
    """The dead letter has its beginning and checksum; a replay sends all of it, and it is rejected again."""
    worker = world.start()
    _publish(world, '1\t{"id": 1}', f"2\t{LARGE}", '2\t{"id": 2}', '3\t{"id": 3}')
    world.settle()
    assert {record.key for record in world.read("sow")} == {b"1", b"2", b"3"}
    (letter,) = world.read("dlq")
    value, data = letter.value or b"", LARGE.encode()
    assert (letter.key, letter.headers["dlq_reason"]) == (b"2", "too_large")
    assert (len(value), data.startswith(value)) == (1024 * 1024, True)
    assert letter.headers["dlq_bytes"] == str(len(data))
    assert letter.headers["dlq_sha256"] == hashlib.sha256(data).hexdigest()
    with DeadLetterReplay(world.config, world.name) as running:
        running.send(survey(running.waiting.letters(), LetterSelection()), LetterSelection())
        assert (running.sent, running.unsent) == (1, [])
    world.settle()
    assert [record.headers["dlq_bytes"] for record in world.read("dlq")] == [str(len(data))] * 2
    assert len(world.read("sow")) == 3
    assert worker.process.poll() is None
