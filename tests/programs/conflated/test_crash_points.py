"""A calamity at each point between two commits of a conflate worker: nothing is lost, nothing told twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.crashing_worker import POINTS
from tests.programs.conflated.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long]

# Those at which a delivery is half made; the runtime's own are tried with merge workers.
_POINTS = ("after produce", "after commit, before apply", "commit of unknown end")
assert set(_POINTS) <= POINTS.keys()

# How often a worker comes by before it happens: soon after the feed begins, whatever else the machine does.
_OFTEN = 15


@pytest.mark.parametrize("point", _POINTS)
def test_a_calamity_at_any_point_costs_nothing(bootstrap: str, tmp_path: Path, unique: str, point: str) -> None:
    """Keys are inserted, changed, deleted and brought back meanwhile; all checks of a long run hold of it."""
    plan = Plan(seed=31, seconds=14, rate=1_000, keys=400, crash=(point, _OFTEN))
    outcome = run(plan, bootstrap, tmp_path, unique, print)
    print(outcome)
    assert outcome.wrong == []
