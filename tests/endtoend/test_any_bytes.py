"""Records with bytes that no client library writes, on every topic that Sowstream reads: each stops itself at most."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from processor.client import Client
from processor.kafka.admin.admin import Admin
from processor.queues.share_groups import set_share_groups
from processor.topics.family import control_spec
from tests.endtoend.raw_batch import (
    RawWriter,
    batch,
    crc32c,
    produce,
    produce_unreadable,
    raw_batch,
    raw_record,
    varint,
    xxh32,
)
from tests.endtoend.world import World
from tests.forked import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.endtoend.raw_batch import RawHeader


pytestmark = pytest.mark.broker

NO_TEXT = b"\xff\xfe"
"""A header name that is not UTF-8."""

SNAPSHOT = ["group_begin", "group_end", "sow", "sow"]
"""The commands of the messages of a snapshot of two records, sorted."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """A topic of one partition with a conflated copy, a view and a queue."""
    sections = {
        "views": {f"{unique}_view": {"underlying": unique, "group_by": ["/state"], "fields": {"/n": "SUM(/n)"}}},
        "queues": {f"{unique}_queue": {"underlying": unique, "filter": "/state = 'paid'"}},
    }
    made = World(bootstrap, tmp_path, unique, partitions=1, sections=sections)
    Admin(made.config.kafka).create([control_spec()])
    set_share_groups(made.config)
    yield made
    made.close()


def send(world: World, role: str, records: list[tuple[bytes | None, bytes | None, list[RawHeader]]]) -> int:
    """Append records in one batch; the offset of the first."""
    encoded = [raw_record(number, *record) for number, record in enumerate(records)]
    with RawWriter(world.bootstrap, f"{world.name}.{role}") as writer:
        error, offset = writer.send(0, raw_batch(b"".join(encoded), len(encoded)))
    assert error == 0
    return offset


def sowstream(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return run(*words, "-c", str(world.file))


def test_a_command_with_an_unreadable_header_name_is_a_dead_letter_and_those_around_it_are_merged(world: World) -> None:
    """The letter has key, value and readable headers, and is listed; nothing is held; sent back, it is merged."""
    worker = world.start()
    body = b'{"id":7,"n":2}'
    bad: list[RawHeader] = [(b"trace", b"\x00\xff"), (NO_TEXT, b"1"), (b"client", b"desk")]
    offset = send(world, "publish", [(b"7", b'{"id":7,"n":1}', []), (b"7", body, bad), (b"8", b'{"id":8,"n":3}', [])])
    world.settle()

    listed = sowstream(world, "dlq", "list", world.name)
    (letter,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert (letter["reason"], letter["source"]) == ("bad_header", f"{world.name}.publish/0/{offset + 1}")
    assert "is not UTF-8" in letter["detail"]
    assert {record.key: json.loads(record.value or b"") for record in world.read("sow")} == {
        b"7": {"id": 7, "n": 1},
        b"8": {"id": 8, "n": 3},
    }
    assert sowstream(world, "status", world.name).returncode == 0
    assert sowstream(world, "dlq", "replay", world.name).returncode == 0
    world.wait(lambda: len(world.read("delta")) == 3, "merging the letter that was sent back")
    assert json.loads(world.read("delta")[-1].value or b"") == {"id": 7, "n": 2}
    assert worker.process.poll() is None


def test_foreign_records_on_every_topic_are_read_by_all_readers(world: World) -> None:
    """Workers, conflaters, views, queries, subscriptions and consumers of queues go on, and hand the record over."""
    workers = [world.start(), world.start("conflate", world.conflated), world.start("view", f"{world.name}_view")]
    world.publish([(b"1", {"id": 1, "n": 1, "state": "paid"}, {})])
    world.settle()
    version: RawHeader = (b"version", b"50")
    foreign = (b"2", b'{"id":2,"n":5,"state":"new"}', [version, (b"kind", b"insert"), (NO_TEXT, None), (b"x", b"\xff")])
    send(world, "sow", [foreign])
    send(world, "delta", [foreign])
    send(world, "ack", [(b"desk", b'{"ack_type":"persisted","client":"desk"}', [(NO_TEXT, b"")])])
    send(world, "dlq", [(b"2", b"{}", [(NO_TEXT, b"")])])
    with RawWriter(world.bootstrap, f"{world.name}_queue.queue") as writer:
        assert writer.send(0, raw_batch(raw_record(0, b"2", foreign[1], foreign[2]), 1))[0] == 0
    rows = {"paid": 1, "new": 5}
    view = f"{world.name}_view"
    world.wait(
        lambda: {row["state"]: row["n"] for row in map(json.loads, (r.value for r in world.read("sow", view)))} == rows,
        "the row of the foreign record",
    )
    world.wait(lambda: len(world.read("sow", world.conflated)) == 2, "the copy of the foreign record")

    for command in (["sow", world.name], ["sow", world.name, "--skip-unreadable"], ["sow", world.conflated]):
        answer = sowstream(world, *command)
        assert answer.returncode == 0, answer.stderr
        messages = [json.loads(line) for line in answer.stdout.splitlines()]
        assert sorted(each["data"]["id"] for each in messages if each["command"] == "sow") == [1, 2]
    assert json.loads(sowstream(world, "get", world.name, "2").stdout)["n"] == 5
    for options in (["--sow"], ["--sow", "--delta"], ["--sow", "--skip-unreadable"]):
        answer = sowstream(world, "subscribe", world.name, *options, "--count", "4", "--timeout", "120")
        assert answer.returncode == 0, answer.stderr
        assert sorted(json.loads(line)["command"] for line in answer.stdout.splitlines()) == SNAPSHOT
    answer = sowstream(world, "dlq", "list", world.name)
    assert (answer.returncode, len(answer.stdout.splitlines())) == (0, 1), answer.stderr
    with Client("desk", world.config) as client:
        assert client.delta_publish(world.name, {"id": 1, "n": 2}, ack="persisted").result(120)
        messages = client.queue(f"{world.name}_queue")
        seen = [messages.next_within(60) for _ in range(2)]
        assert sorted(message.data["id"] for message in seen if message is not None) == [1, 2]
    assert all(worker.process.poll() is None for worker in workers)

    assert workers[0].stop() == 0
    world.forget_state()
    world.start()
    world.publish([(b"2", {"id": 2, "n": 6}, {})])
    world.settle()
    answer = sowstream(world, "sow", world.name, "--filter", "/id = 2")
    (record,) = [each for each in map(json.loads, answer.stdout.splitlines()) if each["command"] == "sow"]
    assert (record["data"]["n"], record["version"]) == (6, 51), "restored from a SOW topic with the foreign record"


@pytest.mark.long
def test_a_record_with_an_impossible_offset_holds_its_partition_until_it_is_skipped(world: World) -> None:
    """Log and status name partition and offset; records before it are merged, and those behind it after the skip."""
    worker = world.start()
    send(world, "publish", [(b"7", b'{"id":7,"n":1}', [])])
    world.settle()
    body = b'{"id":7,"wrong":1}'
    with RawWriter(world.bootstrap, f"{world.name}.publish") as writer:
        error, offset = writer.send(0, raw_batch(raw_record(700, b"7", body), 1))
    assert error == 0
    world.wait(lambda: '"event": "partition held"' in worker.log(), "the hold")
    world.wait(lambda: "unreadable_batch" in sowstream(world, "status", world.name).stdout, "the notice")
    send(world, "publish", [(b"8", b'{"id":8,"n":3}', [])])
    held = next(json.loads(line) for line in worker.log().splitlines() if '"event": "partition held"' in line)
    assert (held["reason"], held["partition"], held["offset"]) == ("unreadable_batch", 0, offset)
    assert f"a record says that its offset is {offset + 700}, which it cannot be" in held["why"]
    skipped = sowstream(world, "resume", world.name, "--partition", "0", "--skip", str(offset), "--yes")
    assert skipped.returncode == 0, skipped.stderr
    world.settle()
    assert {record.key for record in world.read("sow")} == {b"7", b"8"}
    assert [letter.headers["dlq_reason"] for letter in world.read("dlq")] == ["skipped"]
    assert worker.process.poll() is None


@pytest.mark.long
def test_a_record_that_the_client_cannot_parse_holds_its_partition_until_it_is_skipped(world: World) -> None:
    """Librdkafka fetches a key with a length of -2 again and again without an event; the other records are merged."""
    worker = world.start()
    send(world, "publish", [(b"7", b'{"id":7,"n":1}', [])])
    good = raw_record(0, b"", b"{}")
    assert good.count(b"\0\0\0\0") == 1
    with RawWriter(world.bootstrap, f"{world.name}.publish") as writer:
        error, offset = writer.send(0, raw_batch(good.replace(b"\0\0\0\0", b"\0\0\0" + varint(-2)), 1))
    assert error == 0
    send(world, "publish", [(b"8", b'{"id":8,"n":3}', [])])
    world.wait(lambda: '"event": "partition held"' in worker.log(), "the hold")
    world.wait(lambda: "unreadable_batch" in sowstream(world, "status", world.name).stdout, "the notice")
    held = next(json.loads(line) for line in worker.log().splitlines() if '"event": "partition held"' in line)
    assert (held["reason"], held["partition"], held["offset"]) == ("unreadable_batch", 0, offset)
    skipped = sowstream(world, "resume", world.name, "--partition", "0", "--skip", str(offset), "--yes")
    assert skipped.returncode == 0, skipped.stderr
    world.settle()
    assert {record.key for record in world.read("sow")} == {b"7", b"8"}
    assert [letter.headers["dlq_reason"] for letter in world.read("dlq")] == ["skipped"]


def test_checksums_are_those_of_the_specifications() -> None:
    """Known values of less than 16 bytes, and of more, agree."""
    assert (xxh32(b""), xxh32(b"abc")) == (0x02CC5D05, 0x32D153FF)
    assert xxh32(b"Nobody inspects the spammish repetition") == 0xE2293B2F
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.broker
def test_a_wrong_checksum_in_a_frame_is_taken_by_the_broker_and_refused_by_the_client(world: World) -> None:
    """The same batch without the flaw is read."""
    topic = f"{world.name}.publish"
    values = [b'{"id":%d}' % number for number in range(3)]
    assert produce(world.bootstrap, topic, 0, batch(values, checksum_flaw=0)) == 0
    assert produce_unreadable(world.bootstrap, topic, 0, values) == 3
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": world.name})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(4, 120)
    consumer.close()
    assert [message.value() for message in messages[:3]] == values
    error = messages[3].error()
    assert error is not None
    assert error.code() == KafkaError._BAD_COMPRESSION
