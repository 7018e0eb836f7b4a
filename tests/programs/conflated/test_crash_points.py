"""A crash at each point between two commits of a conflate worker loses and repeats no delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.crashing_worker import POINTS
from tests.programs.conflated.account import Bounds
from tests.programs.conflated.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long]

# The points within a delivery; the runtime's own points are tested with merge workers.
_POINTS = ("after produce", "after commit, before apply", "commit of unknown end")
assert set(_POINTS) <= POINTS.keys()

# Number of the pass at which the crash happens: soon after the feed begins, on a machine under any load.
_OFTEN = 15


@pytest.mark.parametrize("point", _POINTS)
def test_a_crash_at_any_point_keeps_all_promises(bootstrap: str, tmp_path: Path, unique: str, point: str) -> None:
    """All promises but those of delays are kept while keys are inserted, changed, deleted and inserted again."""
    plan = Plan(seed=31, seconds=14, rate=1_000, keys=400, crash=(point, _OFTEN), bounds=Bounds())
    outcome = run(plan, bootstrap, tmp_path, unique, print)
    print(outcome)
    assert outcome.wrong == []
