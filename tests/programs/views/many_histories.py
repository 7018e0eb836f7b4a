"""Random histories in as many processes as there are processors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from tests.builtin.view.histories import ExtremesHistory, History, MergedHistory, PartialHistory, PlainHistory
from tests.builtin.view.join_chain import (
    BroadcastHistory,
    JoinHistory,
    PlainBroadcastHistory,
    PlainJoinHistory,
    SameKeyHistory,
)
from tests.builtin.view.oracle import Duck

_PIECE = 20
"""Histories that a process runs before it reports."""
_SHOWN_S = 5.0
_ONE_OF_FEW = 5


def histories(count: int, steps: int, seed: int, say: Callable[[str], None], processes: int | None = None) -> int:
    """Run so many histories of groups, and a fifth as many of each kind of joins; returns 1 if one found a difference.

    In a fifth of the histories of groups a worker merges the records, of which some expire.

    Args:
        count: the number of histories; each has a seed of its own, from `seed` on.
        steps: the steps of each; after every one the rows are compared.
        seed: the first seed.
        say: prints a line.
        processes: how many; None: one for each processor.
    """
    processes = processes or len(os.sched_getaffinity(0))
    say(f"seed {seed}: {count:,} histories of {steps} steps in {processes} processes")
    began_s = shown_s = time.monotonic()
    done = 0
    with ProcessPoolExecutor(processes) as pool:
        pieces = [range(begin, min(begin + _PIECE, count)) for begin in range(0, count, _PIECE)]
        running = {pool.submit(partial(_piece, seed, steps), piece): piece for piece in pieces}
        for ended in as_completed(running):
            if wrong := ended.result():
                say(wrong)
                pool.shutdown(cancel_futures=True)
                return 1
            done += len(running[ended])
            if time.monotonic() - shown_s > _SHOWN_S:
                shown_s = time.monotonic()
                left_s = (shown_s - began_s) / done * (count - done)
                say(f"{done:,} of {count:,}, about {left_s / 60:.0f} minutes left")
    say(f"{count:,} histories: no difference in {time.monotonic() - began_s:.0f} s")
    return 0


def _piece(seed: int, steps: int, numbers: range) -> str:
    """Run some histories; return the first difference, with the seed and the step, empty if there is none."""
    duck = Duck()
    for number in numbers:
        for history in _of(seed, number, duck):
            for step in range(steps):
                if wrong := history.step():
                    return f"{type(history).__name__} seed {seed + number}, step {step}: {wrong}"
    return ""


def _of(seed: int, number: int, duck: Duck) -> Iterator[History | JoinHistory]:
    is_one_of_few = number % _ONE_OF_FEW == 0
    yield (MergedHistory if is_one_of_few else History)(seed + number, duck)
    if is_one_of_few:
        yield PlainHistory(seed + number, duck)
        yield PartialHistory(seed + number, duck)
        yield ExtremesHistory(seed + number)
        for kind in (JoinHistory, SameKeyHistory, BroadcastHistory, PlainJoinHistory, PlainBroadcastHistory):
            yield kind(seed + number)
