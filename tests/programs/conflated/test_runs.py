"""Conflated topics under a feed, in short: the whole of it is `make conflated`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.programs.conflated.account import Bounds
from tests.programs.conflated.run import TAKEOVER_MS, Plan, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.broker

_SEED = 23


def _keeps_its_promises(plan: Plan, bootstrap: str, directory: Path, unique: str) -> None:
    outcome = run(plan, bootstrap, directory, unique, print)
    print(outcome)
    assert outcome.wrong == []


@pytest.mark.long
def test_a_killed_worker_delivers_each_key_once_per_interval_and_its_last_state(
    bootstrap: str, tmp_path: Path, unique: str
) -> None:
    """Killed -9 once, in the middle; how late it is, others that are at work on this machine decide."""
    plan = Plan(seed=_SEED, seconds=6, rate=2_000, keys=200, kill_every_s=3, bounds=Bounds())
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)


@pytest.mark.long
def test_twenty_thousand_updates_a_second_are_conflated(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """A broker that has just started is slower: lateness is held to its p99 by `make conflated` alone."""
    plan = Plan(seed=_SEED, seconds=20, bounds=Bounds(max_ms=TAKEOVER_MS))
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)


@pytest.mark.long
def test_two_workers_that_are_killed_in_turn_catch_up(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Each comes back at once, to partitions that the other has taken over."""
    plan = Plan(seed=_SEED, seconds=25, rate=5_000, keys=2_000, workers=2, kill_every_s=7)
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)


@pytest.mark.long
def test_what_a_merge_worker_writes_is_conflated(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """Deltas in, whole records between; the transactions of the one are the other's input."""
    plan = Plan(seed=_SEED, seconds=12, rate=4_000, keys=2_000, is_merged=True)
    _keeps_its_promises(plan, bootstrap, tmp_path, unique)
