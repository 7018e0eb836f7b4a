"""Adds up the evidence of a run: one partition at a time in each process, with a process for each processor."""

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


def add_up(places: Sequence[Place], interval_ms: int, warm_up_s: float, report: Callable[[str], None]) -> Account:
    """The account of all the partitions, which is not closed yet."""
    account = Account(interval_ms, warm_up_s)
    processes = min(len(places), os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")  # A fork would copy Kafka clients in an inconsistent state.
    with ProcessPoolExecutor(processes, spawn) as pool:
        asked = {pool.submit(_added, place, interval_ms, warm_up_s): place for place in places}
        for done in as_completed(asked):
            account.include(done.result())
            report(f"  added up partition {asked[done].partition}: {account.updates:,} updates so far")
    return account


def _added(place: Place, interval_ms: int, warm_up_s: float) -> Account:
    """The account of one partition."""
    gc.disable()  # Millions of updates are scanned repeatedly, and none is part of a reference cycle.
    account = Account(interval_ms, warm_up_s)
    account.add(gather(place))
    return account
