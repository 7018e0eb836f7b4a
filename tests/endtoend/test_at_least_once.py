"""Tests of workers without transactions: after a failure at any point SOW has each record merged once."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from processor.config import load
from processor.wire.partition_marks import first_version
from tests.endtoend.crashing_staged import ASLEEP, HALF, POINTS
from tests.endtoend.crashing_worker import die
from tests.endtoend.world import World
from tests.programs.faults.checker import check
from tests.programs.faults.load import commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.programs.faults.checker import Figures

pytestmark = pytest.mark.broker

QUICK = (HALF,)


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a world whose workers use no transactions."""
    made = World(bootstrap, tmp_path, unique)
    tree = yaml.safe_load(made.file.read_text())
    made.file.write_text(yaml.safe_dump(tree | {"guarantee": "at_least_once"}))
    made.config = load(made.file)
    yield made
    made.close()


def account(world: World) -> Figures:
    """Check that every record is merged once: SOW has one record of each source; deltas and dead letters may repeat."""
    figures = check(world, guarantee="at_least_once")
    sources = [record.headers["source"] for record in world.read("sow")]
    assert len(sources) == len(set(sources)), "a record is in SOW twice"
    return figures


def publish(world: World, seed: int, count: int, keys: int = 50) -> None:
    """Publish commands of every kind except keyless ones, which could be merged twice without a sequence."""
    print(f"seed {seed}")
    world.publish([tuple(command) for command in commands(seed, count, keys) if command.key is not None])


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in QUICK else pytest.mark.long) for point in (HALF, *POINTS)]
)
def test_a_calamity_at_any_point_leaves_every_record_merged_once(world: World, point: str) -> None:
    """A worker fails on the state of another one; if it dies, a third worker takes over."""
    publish(world, 91, 500)
    first = world.start()
    world.settle()
    assert first.stop() == 0, first.log()
    if point == "during restore":
        world.forget_state()

    publish(world, 92, 1_000)
    of_producer = point == HALF or "send_marked" in POINTS[point]
    victim = world.start(program=["tests.endtoend.crashing_staged", point, "2" if of_producer else "1"])
    dies = point == HALF or POINTS[point][3] is die
    victim.is_expected_to_end = dies
    if dies:
        world.wait(lambda: victim.process.poll() is not None, f"dying {point}")
        world.start()
    world.settle()
    print(account(world))
    if not dies:
        log = victim.file.read_text(errors="replace")  # All of it: several rollbacks may follow, and restores.
        assert "injected" in log, "the calamity did not happen"


@pytest.mark.long
def test_a_worker_that_slept_through_its_session_sends_nothing_when_it_wakes(world: World, tmp_path: Path) -> None:
    """A worker is suspended between deltas and SOW until another takes over, then it wakes and lives on."""
    publish(world, 93, 1_000)
    sleeper = world.start(program=["tests.endtoend.crashing_staged", ASLEEP, "1"])
    world.wait(lambda: bool(world.read("delta")), "the first deltas, and with them the sleep")
    assert world.read("sow") == []
    other = world.start(state_dir=tmp_path / "other")  # The sleeper holds its own.
    world.settle()
    before = len(world.read("sow"))
    sleeper.process.send_signal(signal.SIGCONT)
    world.wait(lambda: "let go" in sleeper.log() or "stood still" in sleeper.log(), "the sleeper hearing of it")
    assert len(world.read("sow")) == before, "the sleeper sent what somebody else has done"
    publish(world, 95, 500)
    world.settle()
    print(account(world))
    for worker in (sleeper, other):
        assert worker.stop() == 0, worker.log()


@pytest.mark.long
def test_workers_that_are_killed_and_join_and_leave_merge_every_record_once(world: World) -> None:
    """Two workers are killed or stopped in turn while records flow, and started again."""
    rng = random.Random(96)
    workers = [world.start(), world.start()]
    for turn in range(8):
        publish(world, 960 + turn, 2_000, 200)
        time.sleep(rng.random())  # At whatever it is doing by then; the seed says when.
        victim = workers[turn % 2]
        if rng.random() < 0.7:
            victim.kill()
        else:
            assert victim.stop() in (0, -signal.SIGTERM), victim.log()  # It may not have come to listen yet.
        workers[turn % 2] = world.start()
    world.settle()
    print(account(world))


@pytest.mark.long
def test_records_without_a_key_are_merged_once_if_they_have_a_sequence(world: World) -> None:
    """They are sent again to their partition, and perhaps again after a crash: the second copy is a duplicate.

    Where a copy came back within the same commit its original is known to be done, and there is no second copy.
    """
    given = [(None, {"id": n, "n": n}, {"client": "desk", "sequence": str(n)}) for n in range(200)]
    world.publish(given[:20])
    first = world.start()  # The note that a new group begins with is behind it.
    world.wait(lambda: len(world.read("sow")) == 20, "merging the first of them")
    world.wait(lambda: first.file.read_text().count('"restored"') >= 4, "beginning every partition, with its note")
    world.settle()
    assert first.stop() == 0, first.log()
    world.publish(given[20:])
    victim = world.start(program=["tests.endtoend.crashing_staged", "before offsets", "1"])
    victim.is_expected_to_end = True
    world.wait(lambda: victim.process.poll() is not None, "dying")
    world.start()
    world.settle()
    world.settle()
    copies = [record for record in world.read("publish") if record.key is not None]
    assert {record.key for record in copies} == {b"%d" % n for n in range(200)}
    begins: dict[bytes | None, int] = {}
    for record in copies:
        begins.setdefault(record.key, record.offset)
    assert sorted((record.key, int(record.headers["version"])) for record in world.read("sow")) == sorted(
        (key, first_version(0, offset)) for key, offset in begins.items()
    )
