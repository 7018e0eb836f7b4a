"""Adds up what a run left behind: a partition at a time, as many at once as there are processors."""

from __future__ import annotations

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING

from tests.programs.conflated.account import Account
from tests.programs.conflated.evidence import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.programs.conflated.evidence import Place


def add_up(places: Sequence[Place], interval_ms: int, warm_up_s: float, say: Callable[[str], None]) -> Account:
    """The account of all these partitions, not closed yet."""
    account = Account(interval_ms, warm_up_s)
    processes = min(len(places), os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")  # A fork would copy Kafka clients half alive.
    with ProcessPoolExecutor(processes, spawn) as pool:
        asked = {pool.submit(_added, place, interval_ms, warm_up_s): place for place in places}
        for done in as_completed(asked):
            account.include(done.result())
            say(f"  added up partition {asked[done].partition}: {account.updates:,} updates so far")
    return account


def _added(place: Place, interval_ms: int, warm_up_s: float) -> Account:
    """One partition's account."""
    gc.disable()  # Millions of updates are looked through again and again, and none goes round in a circle.
    account = Account(interval_ms, warm_up_s)
    account.add(gather(place))
    return account
