"""A costly or hanging filter stops its own partition at most: the others go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from processor.kafka.admin.admin import Admin
from processor.topics.family import control_spec
from tests.endtoend.oracle import last_per_key
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker

GROWING = "'yy'"
for _ in range(6):
    GROWING = f"REPLACE({GROWING}, 'y', '{'y' * 100}')"
COSTLY = f"LENGTH(UPPER(REVERSE({GROWING}))) < 0 OR /id = 1"
"""A filter that would make texts of millions of characters for each record."""

KEYS = [b"%d" % number for number in range(40)]

HANGING = '''
import time


def hang(value):
    """Never return."""
    while value is not None:
        time.sleep(0.01)
'''


@pytest.fixture
def plugged(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[tuple[World, dict[str, str]]]:
    """Create two topics, and a filter function HANG in the environment of their workers."""
    site = tmp_path / "site"
    info = site / "hanging-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "hanging.py").write_text(HANGING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sowstream.functions]\nhang = hanging:hang\n")
    runtime = {"session_timeout_s": 6, "transaction_timeout_s": 3}
    world = World(
        bootstrap, tmp_path, unique, runtime=runtime, others={f"{unique}_b": {"key": ["/id"], "partitions": 2}}
    )
    Admin(world.config.kafka).create([control_spec()])
    yield world, {"PYTHONPATH": str(site)}
    world.close()


def sowstream(world: World, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "processor.cli.main", *arguments, "-c", str(world.file)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env={**os.environ, **env}
    )


def deleting(text: str, ack: str = "processed") -> tuple[None, None, dict[str, str]]:
    """A delete by filter for one partition."""
    return None, None, {"command": "sow_delete", "filter": text, "ack_type": ack, "client": "desk", "command_id": "c"}


def _all_merged(world: World, keys: list[bytes], value: object, name: str | None = None) -> bool:
    """Return whether the records of these keys have a field `n` of this value."""
    records = last_per_key(world.read("sow", name))
    return all(records.get(key.decode(), {}).get("n") == value for key in keys)


def test_a_delete_that_is_too_costly_is_a_dead_letter_and_the_next_commands_go_on(world: World) -> None:
    """A delete by a filter over its budget becomes a dead letter at once, and commands behind it are carried out."""
    world.start()
    world.publish([(b"%d" % number, {"id": number, "n": 1}, {}) for number in range(2000)])
    world.publish([deleting(COSTLY), *[(b"%d" % number, {"id": number, "n": 2}, {}) for number in range(20)]])
    world.wait(world.processed, "processing all input")
    letters = world.read("dlq")
    assert [letter.headers["dlq_reason"] for letter in letters] == ["bad_header"]
    assert "up to here its functions make" in letters[0].headers["dlq_detail"]
    assert _all_merged(world, KEYS[:20], 2)
    assert len(last_per_key(world.read("sow"))) == 2000


@pytest.mark.long
def test_a_function_that_hangs_holds_its_partition_and_the_others_go_on(
    plugged: tuple[World, dict[str, str]],
) -> None:
    """After a filter function hung, the successor holds the partition at that command, and skips it by order."""
    world, env = plugged
    other = world.names[1]
    worker = world.start(env=env)
    world.publish([(b"%d" % number, {"id": number, "n": 1}, {}) for number in range(40)])
    world.publish([(b"%d" % number, {"id": number, "n": 1}, {}) for number in range(40)], name=other)
    world.wait(lambda: _all_merged(world, KEYS, 1) and _all_merged(world, KEYS, 1, other), "merging the records")
    world.publish([deleting("HANG(/id) = 99")])
    worker.is_expected_to_end = True
    world.publish([(b"%d" % number, {"id": number, "n": 2}, {}) for number in range(40)])
    world.publish([(b"%d" % number, {"id": number, "n": 2}, {}) for number in range(40)], name=other)
    assert worker.process.wait(timeout=PATIENCE_S) == 1, worker.log()
    successor = world.start(env=env)
    held = _held(world, env)
    at_fault = {place["partition"]: place["offset"] for place in held}
    assert len(at_fault) == 1, held
    assert held[0]["reason"] == "stuck"
    ((partition, offset),) = at_fault.items()
    # The neighbours, partitions of the same topic too, have all that came behind the command.
    stuck = {record.key for record in world.read("publish") if record.partition == partition}
    free = [key for key in KEYS if key not in stuck]
    assert len(free) > 10
    world.wait(
        lambda: _all_merged(world, free, 2) and _all_merged(world, KEYS, 2, other), "merging the neighbours' records"
    )
    assert successor.process.poll() is None
    done = sowstream(
        world, "resume", world.name, "--partition", str(partition), "--skip", str(offset), "--yes", env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    world.wait(world.processed, "processing the rest of the held partition")
    assert _all_merged(world, KEYS, 2)
    assert [letter.headers["dlq_reason"] for letter in world.read("dlq")] == ["skipped"]
    world.wait(lambda: '"event": "partition goes on"' in successor.file.read_text(), "the end of the hold")
    assert successor.process.poll() is None


def _held_now(world: World, env: dict[str, str]) -> list[dict[str, object]]:
    """The held partitions, as `sowstream status` shows them; one of unknown reason without an answer."""
    done = sowstream(world, "status", "--json", env=env)
    print(done.stderr)
    return _places(json.loads(done.stdout)) if done.stdout else [{"reason": "unknown"}]


def _places(shown: object) -> list[dict[str, object]]:
    """Each held partition in a JSON value, with its hold."""
    if isinstance(shown, dict):
        inner = [place for value in shown.values() for place in _places(value)]
        held = shown.get("held")
        return [*([{**held, "partition": shown["partition"]}] if isinstance(held, dict) else []), *inner]
    return [place for value in shown for place in _places(value)] if isinstance(shown, list) else []


def _held(world: World, env: dict[str, str]) -> list[dict[str, object]]:
    places: list[dict[str, object]] = []

    def is_held() -> bool:
        places[:] = _held_now(world, env)
        return [place["reason"] for place in places] == ["stuck"]

    world.wait(is_held, "a held partition in `sowstream status`")
    return places
