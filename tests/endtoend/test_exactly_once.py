"""Invariants 1 to 4: SOW, delta and input agree after any failure of workers."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.endtoend.oracle import fold, last_per_key, replay
from tests.endtoend.world import random_commands

if TYPE_CHECKING:
    from tests.endtoend.world import World

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


@pytest.mark.long
def test_workers_that_are_killed_lose_nothing_and_double_nothing(world: World) -> None:
    """Two workers are killed in turn while records flow, and started again."""
    rng = random.Random(13)
    workers = [world.start(), world.start()]
    for turn in range(4):
        world.publish(random_commands(100 + turn, 5_000, 200))
        # At whatever it is doing by then; the seed says when.
        time.sleep(rng.random())
        workers[turn % 2].kill()
        workers[turn % 2] = world.start()
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
