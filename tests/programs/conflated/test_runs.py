"""Short runs of conflated topics under a feed; `make program NAME=conflated` runs them at full length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.crashing_worker import POINTS
from tests.programs.conflated.account import Bounds
from tests.programs.conflated.run import TAKEOVER_MS, Plan, run

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [pytest.mark.broker, pytest.mark.long]

_SEED = 23


def _keeps_its_promises(plan: Plan, bootstrap: str, directory: Path, unique: str) -> None:
    outcome = run(plan, bootstrap, directory, unique, print)
    print(outcome)
    assert outcome.wrong == []


def test_a_killed_worker_delivers_each_key_once_per_interval_and_its_last_state(
    bootstrap: str, tmp_path: Path, unique: str
) -> None:
    """A worker that is killed once delivers each key once per interval, and its last state; delays are not limited."""
    plan = Plan(seed=_SEED, seconds=6, rate=2_000, keys=200, kill_every_s=3, bounds=Bounds())
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)


def test_twenty_thousand_updates_a_second_are_conflated(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """One worker conflates 20,000 updates a second; the p99 of the delays is left to `make program NAME=conflated`."""
    plan = Plan(seed=_SEED, seconds=20, bounds=Bounds(max_ms=TAKEOVER_MS))
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)


def test_two_workers_that_are_killed_in_turn_catch_up(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Two workers that are killed in turn and restarted at once deliver all updates, also of partitions taken over."""
    plan = Plan(seed=_SEED, seconds=25, rate=5_000, keys=2_000, workers=2, kill_every_s=7)
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)


def test_the_output_of_a_merge_worker_is_conflated(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """The records that a merge worker makes of deltas, in transactions of its own, are conflated."""
    plan = Plan(seed=_SEED, seconds=12, rate=4_000, keys=2_000, is_merged=True)
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)


# The points within a delivery; the runtime's own points are tested with merge workers.
_POINTS = ("after produce", "after commit, before apply", "commit of unknown end")
assert set(_POINTS) <= POINTS.keys()

# Number of the pass at which the crash happens: soon after the feed begins, on a machine under any load.
_OFTEN = 15


@pytest.mark.parametrize("point", _POINTS)
def test_a_crash_at_any_point_keeps_all_promises(bootstrap: str, tmp_path: Path, unique: str, point: str) -> None:
    """A crash at any point keeps all promises while keys are inserted, changed, deleted and inserted again."""
    plan = Plan(seed=31, seconds=14, rate=1_000, keys=400, crash=(point, _OFTEN))
    outcome = run(plan, bootstrap, tmp_path, unique, print)
    print(outcome)
    assert outcome.wrong == []
