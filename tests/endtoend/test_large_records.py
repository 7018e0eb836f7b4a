"""Tests of a record that is small compressed and large uncompressed: its dead letter fits, and can be replayed."""

from __future__ import annotations

import hashlib
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from processor.operate.letter_replay import DeadLetterReplay
from processor.operate.waiting_letters import LetterSelection, survey
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

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
