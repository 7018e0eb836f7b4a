"""Records that cannot be merged or written: dead letters with a reason, their limit, and a worker that goes on."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from structlog.testing import capture_logs

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.hosting.pipeline import Pipeline
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.runtime.worker.assembly import Assembly
from processor.runtime.worker.worker_identity import ProcessSlot
from processor.topics.family import control_spec
from tests.cli.conftest import Cli
from tests.endtoend.oracle import fold, last_per_key, replay
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from processor.record import Record
    from tests.endtoend.world import Worker


pytestmark = pytest.mark.broker

BAD: list[tuple[str, bytes | None, Any, dict[str, str]]] = [
    ("undecodable", b"1", b"{not json", {}),
    ("undecodable", b"1", b"\xff\xfe", {}),
    ("not_an_object", b"1", b"[1,2]", {}),
    ("missing_key", None, b'{"name":"nobody"}', {}),
    ("missing_key", None, None, {}),
    ("key_mismatch", b"1", b'{"id":2}', {}),
    ("unknown_command", b"1", b'{"id":1}', {"command": "upsert"}),
    ("bad_header", b"1", b'{"id":1}', {"remove": "not a list"}),
    ("too_large", b"1", b'{"id":1,"blob":"' + b"x" * 5_000_000 + b'"}', {}),
    ("too_deep", b"1", b'{"id":1,"deep":' + b"[" * 200 + b"]" * 200 + b"}", {}),
]


def test_each_bad_record_goes_to_the_dead_letter_topic_as_it_was_and_changes_nothing_else(world: World) -> None:
    """Good records before, between and after are merged; bad ones keep key, value and headers."""
    mixed: list[tuple[bytes | None, Any, dict[str, str]]] = [(b"1", {"id": 1, "n": 0}, {})]
    for number, (_, key, value, headers) in enumerate(BAD, 1):
        mixed += [(key, value, headers | {"trace": str(number)}), (b"1", {"id": 1, "n": number}, {})]
    world.publish(mixed)
    worker = world.start()
    world.settle()

    letters = sorted(world.read("dlq"), key=lambda letter: int(letter.headers["trace"]))
    assert [letter.headers["dlq_reason"] for letter in letters] == [reason for reason, *_ in BAD]
    inputs = {f"{world.name}.publish/{seen.partition}/{seen.offset}": seen for seen in world.read("publish")}
    for letter, (_, key, value, headers) in zip(letters, BAD, strict=True):
        assert (letter.key, letter.value) == (key, value)
        assert letter.headers["dlq_detail"]
        assert letter.headers.items() >= headers.items()
        assert inputs[letter.headers["source"]].value == value
    sow = world.read("sow")
    assert last_per_key(sow) == {"1": {"id": 1, "n": len(BAD)}}
    assert [record.headers["version"] for record in sow] == [str(n) for n in range(1, len(BAD) + 2)]
    assert worker.process.poll() is None, worker.log()


def test_a_record_without_a_kafka_key_is_sent_again_with_the_one_in_its_body(world: World) -> None:
    """It is merged once, in the partition of its key."""
    world.publish([(None, {"id": n, "n": n}, {}) for n in range(40)])
    world.start()
    world.wait(lambda: len(world.read("sow")) == 40, "merging 40 records")

    sow = world.read("sow")
    assert last_per_key(sow) == {str(n): {"id": n, "n": n} for n in range(40)}
    world.publish([(b"%d" % n, {"id": n, "again": True}, {}) for n in range(40)])
    world.wait(lambda: len(world.read("sow")) == 80, "merging them again")
    home = {record.key: record.partition for record in sow}
    assert all(home[record.key] == record.partition for record in world.read("sow"))


@pytest.mark.long
def test_a_record_that_the_topic_does_not_take(world: World) -> None:
    """After the topic's limit was reduced the large record is rejected, and all others are merged."""
    worker = _started(world)
    _limit(world, "sow", 20_000)
    noise = random.Random(1)
    world.publish([(b"%d" % n, {"id": n, "noise": noise.randbytes(5_000).hex()}, {}) for n in range(40)])
    world.publish([(b"1", {"id": 1, "noise": noise.randbytes(60_000).hex()}, {"trace": "it"})])
    # It is larger than the limit before it is compressed, and fits.
    world.publish([(b"2", {"id": 2, "noise": "x" * 60_000}, {})])
    world.publish([(b"%d" % n, {"id": n, "after": True}, {}) for n in range(40)])
    world.settle()
    states = {record.key: json.loads(record.value or b"") for record in world.read("sow")}
    assert {key for key, state in states.items() if state["after"]} == {b"%d" % n for n in range(40)}
    assert states[b"2"]["noise"] == "x" * 60_000
    (letter,) = world.read("dlq")
    assert (letter.key, letter.headers["dlq_reason"], letter.headers["trace"]) == (b"1", "too_large", "it")
    assert len(letter.value or b"") > 120_000
    assert worker.process.poll() is None


def test_a_dead_letter_that_its_topic_does_not_take_any_more(world: World) -> None:
    """After the limit of the dead-letter topic was reduced dead letters carry less."""
    worker = _started(world)
    _limit(world, "dlq", 40_000)
    bad = random.Random(2).randbytes(200_000)
    world.publish([(b"1", bad, {"trace": "it"}), (b"1", {"id": 1}, {})])
    world.settle()
    (letter,) = world.read("dlq")
    headers = letter.headers
    assert (headers["dlq_reason"], headers["trace"]) == ("undecodable", "it")
    assert (headers["dlq_bytes"], headers["dlq_truncated"]) == ("200000", "true")
    assert headers["dlq_sha256"] == hashlib.sha256(bad).hexdigest()
    assert 20_000 < len(letter.value or b"") < 40_000
    assert bad.startswith(letter.value or b"?")
    assert len(world.read("sow")) == 1
    assert worker.process.poll() is None


def test_a_topic_that_was_deleted(world: World) -> None:
    """An output topic is deleted while the worker runs."""
    worker = _started(world)
    Admin(world.config.kafka).delete([f"{world.name}.delta"])
    world.publish([(b"%d" % number, {"id": number}, {}) for number in range(8)])
    assert worker.process.wait(timeout=PATIENCE_S) == 2
    assert "the topic does not exist" in worker.log()


def _limit(world: World, role: str, bytes_max: int) -> None:
    """Set the largest batch of a topic."""
    setting = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, f"{world.name}.{role}", incremental_configs=[setting])
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.incremental_alter_configs([topic]).values():
        future.result()


def _started(world: World) -> Worker:
    worker = world.start()
    world.wait(lambda: worker.log().count('"event": "restored"') >= 4, "the worker starting")
    worker.is_expected_to_end = True
    return worker


def test_a_partition_full_of_rubbish_is_held_and_the_others_go_on(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """None of it is committed, and the error has reason, place and remedy. With ratio 1 all of it is rejected."""
    world = World(bootstrap, tmp_path, unique, dlq_window_records=50, partitions=4)
    try:
        other = next(b"%d" % key for key in range(100) if partition_for(b"%d" % key, 4) != partition_for(b"1", 4))
        world.publish([(b"1", b"rubbish", {})] * 200)
        worker = world.start()
        world.wait(lambda: '"event": "partition held"' in worker.log(), "the hold")
        world.publish([(other, {"id": int(other)}, {})])
        world.wait(lambda: len(world.read("sow")) == 1, "another partition's record")
        held = next(json.loads(line) for line in worker.log().splitlines() if '"event": "partition held"' in line)
        assert (held["reason"], held["offset"], held["partition"]) == ("rejects", 0, partition_for(b"1", 4))
        assert "50 of 50 records in a row were rejected, 50 as undecodable, such as offset 0: " in held["why"]
        assert f"`sowstream resume {unique} --partition {held['partition']}`" in held["why"]
        assert f"raise topics.{unique}.dlq_max_ratio (now 0.9; 1 holds nothing)" in held["why"]
        assert world.read("dlq") == []
        assert worker.stop() == 0, worker.log()

        world.file.write_text(world.file.read_text().replace("dlq_window_records: 50", "dlq_max_ratio: 1"))
        world.start()
        world.wait(lambda: len(world.read("dlq")) == 200, "rejecting everything")
    finally:
        world.close()


@pytest.mark.long
def test_an_operator_skips_a_record_or_lets_all_pass(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """`status` shows the hold; skipped records are dead letters, and later records are merged."""
    world = World(bootstrap, tmp_path, unique, dlq_window_records=5, partitions=4)
    Admin(world.config.kafka).create([control_spec()])
    partition = str(partition_for(b"1", 4))

    def sowstream(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            Cli.command(*words, "-c", str(world.file)), capture_output=True, text=True, timeout=150, check=False
        )

    try:
        world.publish([(b"1", b"rubbish", {})] * 5)
        worker = world.start(name=unique)
        world.wait(lambda: sowstream("status", unique).returncode == 1, "the notice")
        world.publish([(b"1", {"id": 1, "n": 1}, {})])

        asked = sowstream("resume", unique, "--partition", partition, "--skip", "4")
        assert asked.returncode == 2, asked.stderr
        assert world.read("dlq") == [], "only with --yes"
        done = sowstream("resume", unique, "--partition", partition, "--skip", "4", "--yes")
        assert done.returncode == 0, done.stderr + worker.log()
        world.settle()
        assert [letter.headers["dlq_reason"] for letter in world.read("dlq")] == ["skipped"] * 5
        assert [json.loads(record.value or b"") for record in world.read("sow")] == [{"id": 1, "n": 1}]
        world.wait(lambda: sowstream("status", unique).returncode == 0, "nothing being held")

        # Windows follow each other: five of nine in a row are a whole window, wherever the last one ended.
        world.publish([(b"1", b"rubbish", {})] * 9)
        world.wait(lambda: sowstream("status", unique).returncode == 1, "the second notice")
        done = sowstream("resume", unique)
        assert done.returncode == 0, done.stderr + worker.log()
        world.settle()
        assert len(world.read("dlq")) == 14
        assert worker.stop() == 0, worker.log()
    finally:
        world.close()


RECORDS, BAD_EVERY = 1_600, 8


class Choosy(DeltaMerge):
    """A merging processor that raises on some records, after it has merged a part of the batch."""

    def process(self, records: Sequence[Record]) -> None:
        """Merge up to the first bad record, then raise."""
        for number, record in enumerate(records):
            if b'"bad"' in (record.value or b""):
                if number:
                    super().process(records[:number])
                raise ZeroDivisionError
        super().process(records)


@pytest.mark.long
def test_hundreds_of_failing_records_cost_little_each(world: World) -> None:
    """Every eighth of 1,600 records in one partition fails; the others are merged once each."""
    config, name = world.config, world.name
    world.publish(
        [
            (b"1", {"id": 1, f"f{number % 50}": "bad" if number % BAD_EVERY == 0 else number}, {})
            for number in range(RECORDS)
        ]
    )
    section = config.topics[name]
    pipeline = Pipeline.of(Choosy, section, name=name, topic=section)
    slot = ProcessSlot(config.state_dir)
    stop = threading.Event()
    thread = Assembly(config, slot).thread(pipeline, stop.is_set)
    runner = threading.Thread(target=thread.run, args=(stop,))
    began_s = time.monotonic()
    with capture_logs():  # As people see them on a terminal, five hundred tracebacks would take most of the time.
        runner.start()
        try:
            world.wait(lambda: world.processed() or not runner.is_alive(), "processing all input")
        finally:
            stop.set()
            runner.join(PATIENCE_S)
    failed = RECORDS // BAD_EVERY
    each_s = (time.monotonic() - began_s) / failed
    print(f"{each_s * 1000:.1f} ms a failing record")
    slot.release()
    read = world.read("publish")
    bad = [record for record in read if b'"bad"' in (record.value or b"")]
    assert [letter.value for letter in world.read("dlq")] == [record.value for record in bad]
    expected = fold([record for record in read if record not in bad])
    assert last_per_key(world.read("sow")) == expected
    assert replay(world.read("delta")) == expected
    assert len(world.read("sow")) == RECORDS - failed
