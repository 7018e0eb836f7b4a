"""Tests of a processor's note: the next owner of a partition gets the committed one, never one that was rolled back.

The ledger of the example plug-in has the sum of all records of a partition in its note alone: one that was lost, or
came from another transaction than the position beside it, makes every later sum wrong.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from processor.config import load
from tests.endtoend import crashing_staged, crashing_worker
from tests.endtoend.crashing_worker import die
from tests.endtoend.world import World
from tests.hosting.packages import EXAMPLE, install
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.endtoend.world import Worker

pytestmark = pytest.mark.broker

_BATCH = 20
"""Records of a batch and of a transaction: there are many of both."""
_QUICK = {"after commit, before apply"}

_AROUND_THE_COMMIT = {
    "before commit",
    "after commit, before apply",
    "abort",
    "commit of unknown end",
    "before offsets",
    "after offsets",
}
"""Calamities at which the note of one transaction could be taken for that of another."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Create a world with a ledger of the published numbers; its package is on every worker's path."""
    site = tmp_path / "site-packages"
    shutil.copytree(EXAMPLE / "example_plugin", site / "example_plugin")
    install(site, "example_plugin", {"ledger": "example_plugin.ledger:Ledger"})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    sections = {"processors": {f"{unique}_ledger": {"use": "ledger", "underlying": unique}}}
    runtime = {"batch_records_max": _BATCH, "internal": {"commit_records_max": _BATCH}}
    made = World(bootstrap, tmp_path, unique, sections=sections, runtime=runtime)
    yield made
    made.close()


def ledger(world: World) -> str:
    """Return the name of the processor."""
    return f"{world.name}_ledger"


def guaranteeing(world: World, guarantee: str) -> None:
    """Set the guarantee of workers that start later."""
    tree = yaml.safe_load(world.file.read_text())
    world.file.write_text(yaml.safe_dump(tree | {"guarantee": guarantee}))
    world.config = load(world.file)


def publish(world: World, seed: int, count: int) -> None:
    """Publish numbers under keys of all partitions, now and then one on which the ledger raises."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    records: list[tuple[bytes | None, Any, dict[str, str]]] = []
    for _ in range(count):
        key = rng.randrange(50)
        qty = "many" if rng.random() < 0.005 else rng.randrange(1, 1_000)
        records.append((b"%d" % key, {"id": key, "qty": qty}, {}))
    world.publish(records)


def settle(world: World) -> None:
    """Wait until the ledger has all published numbers."""
    world.wait(lambda: world.processed(ledger(world)), "processing all input")


def sums(world: World, role: str) -> dict[int, list[int]]:
    """Return for each partition the sum after each record, expected or from the ledger."""
    found: dict[int, list[int]] = {partition: [] for partition in range(4)}
    of_ledger = role == "sow"
    for record in world.read(role, ledger(world) if of_ledger else None):
        assert record.value is not None
        number = json.loads(record.value)["sum" if of_ledger else "qty"]
        if isinstance(number, int):
            found[record.partition].append(number)
    return found if of_ledger else {partition: list(accumulate(numbers)) for partition, numbers in found.items()}


def check(world: World) -> None:
    """Check that every record has one entry, with the sum of all records up to it."""
    assert sums(world, "sow") == sums(world, "publish")


def points(of: dict[str, Any], quick: set[str]) -> list[Any]:
    """List the failures around a commit; most of them for long runs only."""
    chosen = [point for point in of if point in _AROUND_THE_COMMIT]
    return [pytest.param(point, marks=() if point in quick else pytest.mark.long) for point in chosen]


def meet(world: World, program: str, point: str, dies: bool) -> None:
    """Let a worker do some of the work, and the next one fail in its third commit."""
    publish(world, 1, 200)
    first = world.start(name=ledger(world))
    settle(world)
    assert first.stop() == 0, first.log()
    if point == "during restore":
        world.forget_state()
    publish(world, 2, 600)
    count = "1" if point in {"during restore", "after write"} else "3"
    victim = world.start(name=ledger(world), program=[program, point, count])
    world.outlive(victim, lambda: world.processed(ledger(world)), dies=dies, name=ledger(world))
    settle(world)
    check(world)
    if not dies:
        assert "injected" in victim.file.read_text(), "the calamity did not happen"


@pytest.mark.parametrize("point", points(crashing_worker.POINTS, _QUICK))
def test_a_calamity_anywhere_brings_the_note_of_the_last_commit_back(world: World, point: str) -> None:
    """After a kill, a rollback or a lost producer the note is that of the last commit."""
    meet(world, "tests.endtoend.crashing_worker", point, crashing_worker.POINTS[point][3] is die)


@pytest.mark.parametrize("point", points(crashing_staged.POINTS, set()))
def test_a_note_without_transactions_is_that_of_the_last_commit(world: World, point: str) -> None:
    """The note is next to the end of SOW, and stays while redelivered records are skipped."""
    guaranteeing(world, "at_least_once")
    meet(world, "tests.endtoend.crashing_staged", point, crashing_staged.POINTS[point][3] is die)


def has_restored(worker: Worker) -> bool:
    """Return whether a worker has begun with a partition."""
    return '"event": "restored"' in worker.file.read_text()


@pytest.mark.long
def test_a_note_moves_with_its_partition(world: World, tmp_path: Path) -> None:
    """Two workers, of which one is killed and one stopped, and a third one that joins, keep the notes."""
    done = threading.Event()

    def feed() -> None:
        seed = 10
        while not done.wait(0.1):
            publish(world, seed, 100)
            seed += 1

    feeder = threading.Thread(target=feed, name="feed")
    feeder.start()
    try:
        first, second = (world.start(name=ledger(world), state_dir=tmp_path / str(number)) for number in range(2))
        for worker in (first, second):
            world.wait(partial(has_restored, worker), "taking partitions")
        first.kill()
        third = world.start(name=ledger(world), state_dir=tmp_path / "2")
        world.wait(partial(has_restored, third), "the third taking partitions")
        time.sleep(1.0)  # Some commits of both; no fact says that there were.
        assert second.stop() == 0, second.log()
    finally:
        done.set()
        feeder.join()
    settle(world)
    check(world)


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "reset by somebody"])
def test_offsets_set_by_another_tool_have_no_note(world: World, text: str) -> None:
    """After a reset with Kafka's tools the old note belongs to another position."""
    publish(world, 20, 200)
    first = world.start(name=ledger(world))
    settle(world)
    assert first.stop() == 0, first.log()
    entries = {partition: len(found) for partition, found in sums(world, "sow").items()}
    operator = Consumer({"bootstrap.servers": world.bootstrap, "group.id": f"app-{world.name}.{ledger(world)}"})
    places = operator.committed(
        [TopicPartition(f"{world.name}.publish", number) for number in range(4)], timeout=PATIENCE_S
    )
    assert all(place.metadata.startswith("sowstream noted ") for place in places)
    operator.commit(
        offsets=[TopicPartition(place.topic, place.partition, place.offset, metadata=text) for place in places],
        asynchronous=False,
    )
    operator.close()
    publish(world, 21, 200)
    world.start(name=ledger(world))
    settle(world)
    for partition, found in sums(world, "publish").items():
        counted = entries[partition]
        assert sums(world, "sow")[partition][counted:] == [total - found[counted - 1] for total in found[counted:]]


@pytest.mark.long
def test_a_note_outlives_a_change_of_the_guarantee(world: World) -> None:
    """The note survives a clean stop and a start with another guarantee, both ways."""
    for seed, guarantee in enumerate(["exactly_once", "at_least_once", "exactly_once"], 30):
        guaranteeing(world, guarantee)
        publish(world, seed, 200)
        worker = world.start(name=ledger(world))
        settle(world)
        assert worker.stop() == 0, worker.log()
    check(world)
