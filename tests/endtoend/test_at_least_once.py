"""Without transactions: a calamity anywhere, and SOW is still what each record merged once makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from processor.config import load
from tests.endtoend.crashing_staged import HALF, POINTS
from tests.endtoend.crashing_worker import die
from tests.endtoend.world import World
from tests.faults.checker import check
from tests.faults.load import commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.checker import Figures

pytestmark = pytest.mark.broker

QUICK = (HALF, "before SOW", "before offsets")


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """One whose workers use no transactions."""
    made = World(bootstrap, tmp_path, unique)
    tree = yaml.safe_load(made.file.read_text())
    made.file.write_text(yaml.safe_dump(tree | {"guarantee": "at_least_once"}))
    made.config = load(made.file)
    yield made
    made.close()


def account(world: World) -> Figures:
    """Every record is merged once: SOW has one record of each source, deltas and dead letters may come again."""
    figures = check(world, guarantee="at_least_once")
    sources = [record.headers["source"] for record in world.read("sow")]
    assert len(sources) == len(set(sources)), "a record is in SOW twice"
    return figures


def publish(world: World, seed: int, count: int, keys: int = 50) -> None:
    """Commands of every kind; keyless ones have no sequence here and could be merged twice: left out."""
    print(f"seed {seed}")
    world.publish([tuple(command) for command in commands(seed, count, keys) if command.key is not None])


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in QUICK else pytest.mark.long) for point in (HALF, *POINTS)]
)
def test_a_calamity_at_any_point_leaves_every_record_merged_once(world: World, point: str) -> None:
    """On a state that another worker left; where the victim dies, a third one takes over."""
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
        assert "injected" in victim.log(), "the calamity did not happen"
