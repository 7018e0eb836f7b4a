"""Invariant 5: a conflated key changes at most once per interval, and its last state always arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.oracle import fold, last_per_key, replay
from tests.endtoend.world import random_commands

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker


def arrived(world: World) -> bool:
    """Whether the conflated topic has the last state of every key."""
    return last_per_key(world.read("sow", world.conflated)) == fold(world.read("publish"))


def test_the_last_states_arrive_and_the_conflated_deltas_add_up_to_them(world: World) -> None:
    """Many updates of few keys become few; a quiet topic still delivers."""
    world.start()
    conflater = world.start("conflate", world.conflated)
    world.publish(random_commands(41, 5_000, 40))
    world.settle()
    world.wait(lambda: arrived(world), "the last states arriving")

    delivered = world.read("sow", world.conflated)
    assert len(delivered) < len(world.read("sow")) / 5, "that is no conflation"
    assert replay(world.read("delta", world.conflated)) == fold(world.read("publish"))
    assert conflater.stop() == 0, conflater.log()


def test_a_killed_conflater_loses_no_pending_update_and_delivers_none_twice(world: World) -> None:
    """Killed -9 while updates are pending, twice."""
    world.start()
    conflater = world.start("conflate", world.conflated)
    for turn in range(3):
        world.publish(random_commands(50 + turn, 2_000, 40))
        world.wait(lambda: world.read("sow", world.conflated) != [], "delivering something")
        if turn < 2:
            conflater.kill()
            conflater = world.start("conflate", world.conflated)
    world.settle()
    world.wait(lambda: arrived(world), "the last states arriving")

    # A delivery made twice would show as a version that does not follow.
    assert replay(world.read("delta", world.conflated)) == fold(world.read("publish"))
