"""A calamity at each point between two commits: nothing is lost, nothing doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.crashing_worker import POINTS, die
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import random_commands

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker


QUICK = {"after commit, before apply"}
"""Tried on every run; the others on the long ones."""


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[] if point in QUICK else [pytest.mark.long]) for point in POINTS]
)
def test_a_calamity_at_any_point_leaves_sow_delta_and_input_in_agreement(world: World, point: str) -> None:
    """On a state that another worker left; where the victim dies, a third one takes over."""
    world.publish(random_commands(81, 1_000, 50))
    first = world.start()
    world.settle()
    assert first.stop() == 0, first.log()
    if point == "during restore":
        world.forget_state()

    world.publish(random_commands(82, 1_000, 50))
    # One partition's records are sent by the second time, the others' are not.
    victim = world.start(crash=(point, 2 if "send_marked" in POINTS[point] else 1))
    if POINTS[point][3] is die:
        world.wait(lambda: victim.process.poll() is not None, f"dying {point}")
        world.start()
    world.settle()
    check(world)
    if POINTS[point][3] is not die:
        assert "injected" in victim.log(), "the calamity did not happen"
