"""Invariants 1 to 4: SOW, delta and input agree after any failure of workers, at each point of a commit too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.crashing_worker import MEANWHILE, POINTS, die
from tests.endtoend.oracle import fold, last_per_key, replay
from tests.endtoend.world import World, random_commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.broker


def check(world: World) -> None:
    """Check that SOW equals a fold of the input, and the replayed deltas equal SOW."""
    expected = fold(world.read("publish"))
    sow, delta = world.read("sow"), world.read("delta")
    assert last_per_key(sow) == expected
    assert replay(delta) == expected
    assert len(sow) == len(delta), "a SOW record and its delta are one update"
    assert world.read("dlq") == []


def test_sow_is_the_fold_of_the_input_and_the_deltas_add_up_to_it(world: World) -> None:
    """Commands of every kind are merged on few keys, twice, the second time on a state of another process."""
    world.publish(random_commands(11, 5_000, 50))
    first = world.start()
    world.settle()
    check(world)
    assert first.stop() == 0, first.log()

    world.publish(random_commands(12, 5_000, 50))
    world.start()
    world.settle()
    check(world)


def test_partitions_move_to_a_worker_that_joins_and_back_when_it_leaves(world: World) -> None:
    """A second worker joins under load, and leaves properly."""
    world.start()
    world.publish(random_commands(21, 3_000, 100))
    second = world.start()
    world.publish(random_commands(22, 3_000, 100))
    world.wait(lambda: '"event": "restored"' in second.log(), "the second worker taking partitions")
    world.publish(random_commands(23, 3_000, 100))
    assert second.stop() == 0, second.log()
    world.publish(random_commands(24, 3_000, 100))
    world.settle()
    check(world)


BEHIND = {"batch_records_max": 50, "internal": {"commit_records_max": 50}}
"""Batches so small that input waits at each commit, and is merged while Kafka commits."""


@pytest.fixture
def behind(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a world whose workers are behind their input."""
    made = World(bootstrap, tmp_path, unique, runtime=BEHIND)
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_calamity_at_any_point_leaves_sow_delta_and_input_in_agreement(world: World, point: str) -> None:
    """A worker fails on the state of another one; if it dies, a third worker takes over."""
    meet(world, point)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point == "merged meanwhile" else [pytest.mark.long])
        for point in POINTS | MEANWHILE
    ],
)
def test_a_calamity_during_a_commit_leaves_them_in_agreement(behind: World, point: str) -> None:
    """The outcome is the same whether the transaction under way was committed or not."""
    meet(behind, point)


def meet(world: World, point: str) -> None:
    """Let a worker meet a failure, and compare all topics when the input is processed."""
    _, called, _, calamity = (POINTS | MEANWHILE)[point]
    world.publish(random_commands(81, 1_000, 50))
    first = world.start()
    world.settle()
    assert first.stop() == 0, first.log()
    if point == "during restore":
        world.forget_state()

    world.publish(random_commands(82, 1_000, 50))
    # One partition's records are sent by the second time, the others' are not.
    victim = world.start(crash=(point, 2 if called == "send_marked" else 1))
    world.outlive(victim, world.processed, dies=calamity is die)
    world.settle()
    check(world)
    if calamity is not die:
        log = victim.file.read_text(errors="replace")  # All of it: several rollbacks may follow, and restores.
        assert "injected" in log, "the calamity did not happen"
