"""Tests of a failure at each point between two commits: no record is lost, and none is merged twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.crashing_worker import MEANWHILE, POINTS, die
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import World, random_commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker


BEHIND = {"batch_records_max": 50, "internal": {"commit_records_max": 50}}
"""Batches so small that input waits at each commit, and is merged while Kafka commits."""
QUICK = {"after commit, before apply"}
"""Tried on every run; the others on the long ones."""


@pytest.fixture
def behind(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a world whose workers are behind their input."""
    made = World(bootstrap, tmp_path, unique, runtime=BEHIND)
    yield made
    made.close()


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[] if point in QUICK else [pytest.mark.long]) for point in POINTS]
)
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
