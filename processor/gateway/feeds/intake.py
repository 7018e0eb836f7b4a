"""Gives a feed's records to its engine turn by turn: subscribers decide what an update costs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from processor.subscriptions.request.turn import TURN_S

if TYPE_CHECKING:
    from processor.record import Record

PART_MAX: Final = 1_000
"""Records that are given at once where updates cost little."""
_PART_FIRST: Final = 100
_PART_S: Final = TURN_S / 2
"""Time that the records given at once should take."""


class Intake:
    """Records on their way to an engine, in order. Event loop only."""

    def __init__(self, take: Callable[[int, list[Record]], None]) -> None:
        """Begin empty; `take` gives records of a partition to the engine."""
        self._take = take
        self._waiting: deque[tuple[int, list[Record]] | Callable[[], None]] = deque()
        self._is_running = False
        self._part_max = _PART_FIRST

    def add(self, partition: int, records: list[Record]) -> None:
        """Give records, as many as fit in this turn, and the others in the next ones."""
        self._waiting.append((partition, records))
        self._begin()

    def add_call(self, call: Callable[[], None]) -> None:
        """Call a function behind the records before it."""
        self._waiting.append(call)
        self._begin()

    def clear(self) -> None:
        """Drop all that waits."""
        self._waiting.clear()

    def _begin(self) -> None:
        if not self._is_running:
            self._run()

    def _run(self) -> None:
        waiting = self._waiting
        self._is_running = bool(waiting)
        if not waiting:
            return
        # One turn in each round of the event loop, however many calls bring records: sockets are looked at between the
        # rounds. It is scheduled first, so that the next records go on if a call raises.
        asyncio.get_running_loop().call_soon(self._run)
        until_s = time.perf_counter() + TURN_S
        while waiting:
            if time.perf_counter() > until_s:
                return
            first = waiting.popleft()
            if not isinstance(first, tuple):
                first()
                continue
            partition, records = first
            part = records[: self._part_max]
            if len(part) < len(records):
                waiting.appendleft((partition, records[len(part) :]))
            began_s = time.perf_counter()
            self._take(partition, part)
            took_s = time.perf_counter() - began_s
            self._part_max = max(1, min(PART_MAX, 2 * self._part_max, int(len(part) * _PART_S / max(took_s, 1e-9))))
