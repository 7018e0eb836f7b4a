"""Tests of two workers with a disk each: states of moved partitions are removed, unless they return in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import World, random_commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long]

DELAY_S = 4.0


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create a family of four partitions whose workers remove former states after seconds."""
    made = World(bootstrap, tmp_path, unique, runtime={"internal": {"state_cleanup_delay_s": DELAY_S}})
    yield made
    made.close()


def test_a_disk_has_the_partitions_of_its_worker_alone(world: World, tmp_path: Path):
    """After a worker joined, and after it left, the records are those of one worker."""
    disks = [tmp_path / "disk-0", tmp_path / "disk-1"]

    def on_disk(number: int) -> set[str]:
        """List the partitions in a worker's directory."""
        place = disks[number] / f"app-{world.name}" / world.name
        return {path.parent.name for path in place.glob("*/rocksdb")}

    world.publish(random_commands(20, 2_000, 100))
    first = world.start(state_dir=disks[0])
    world.settle()
    assert on_disk(0) == set("0123")
    second = world.start(state_dir=disks[1])
    world.wait(lambda: len(on_disk(1)) == 2, "the second worker's partitions")
    world.wait(lambda: len(on_disk(0)) == 2, "removing what moved away")
    assert on_disk(0) | on_disk(1) == set("0123")
    world.wait(lambda: "former state removed" in first.log(), "the line of the removal")
    world.publish(random_commands(21, 2_000, 100))
    world.settle()
    second.stop()
    world.wait(lambda: on_disk(0) == set("0123"), "taking all partitions back")
    world.settle()
    check(world)
