"""Tests of a partition of which nearly all records are rejected: it is held, and an operator may accept it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.topics.family import control_spec
from tests.cli.conftest import Cli
from tests.endtoend.world import World

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker


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
