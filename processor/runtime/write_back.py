"""When the stores are brought up to date, and how much of it in one turn of the loop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.runtime.task import Task

_BEGIN: Final = 0.75
"""Of the memory that may wait: the rest is for what comes while it is written."""
_STEP: Final = 0.2
"""Of it: what has to come, by the quick count, before it is counted well once more. What was found may be little less
than begins: so the whole stays below the limit, and keys that change again and again are not counted at every turn."""
_KEYS_MIN: Final = 1_000
"""Least piece: 2 to 4 ms, which nobody notices who gets a record."""


class WriteBack:
    """Begins when much is waiting or has waited long, and then goes on a piece a turn.

    All at once it would take a good part of a second, in which nothing is merged: every record of that time is late. A
    piece has more keys than the turn took records, so that it comes to an end however fast records come.
    """

    def __init__(self, bytes_max: int, interval_s: float, now_s: float) -> None:
        """Begin with nothing waiting.

        Args:
            bytes_max: how much may wait, of all tasks.
            interval_s: how long it may wait before it is begun with.
            now_s: by a clock that never goes back.
        """
        self._bytes_max = bytes_max
        self._interval_s = interval_s
        self._began_s = now_s
        self._look_bytes = _BEGIN * bytes_max  # What the quick count has to say before it is counted well.

    def is_due(self, tasks: Sequence[Task], now_s: float) -> bool:
        """Whether to begin now; then it is taken for done."""
        is_much = not is_writing(tasks) and self._is_much(tasks)
        if not is_much and now_s - self._began_s < self._interval_s:
            return False
        self._began_s, self._look_bytes = now_s, _BEGIN * self._bytes_max
        return True

    def pieces(self, tasks: Sequence[Task], taken: int) -> list[tuple[Task, int]]:
        """What to write in a turn that took so many records: tasks, and how many keys of each.

        One task's piece; where more waits than may, all that there is.
        """
        writing = [task for task in tasks if task.state.is_writing]
        if not writing:
            return []
        if _waiting(tasks) >= self._bytes_max and _counted(tasks) >= self._bytes_max:
            return [(task, sys.maxsize) for task in writing]
        return [(writing[0], _KEYS_MIN + taken)]

    def _is_much(self, tasks: Sequence[Task]) -> bool:
        """Whether so much waits that it is to be begun with; counted well where the quick count has come so far."""
        if _waiting(tasks) < self._look_bytes:
            return False
        counted, begin = _counted(tasks), _BEGIN * self._bytes_max
        self._look_bytes = max(begin, counted + _STEP * self._bytes_max)
        return counted >= begin


def is_writing(tasks: Sequence[Task]) -> bool:
    """Whether there is a piece to write."""
    return any(task.state.is_writing for task in tasks)


def _counted(tasks: Sequence[Task]) -> int:
    """The bytes that wait, each key once."""
    for task in tasks:
        task.state.recount()
    return _waiting(tasks)


def _waiting(tasks: Sequence[Task]) -> int:
    """The bytes that wait, by the quick count."""
    return sum(task.state.unwritten_bytes for task in tasks)
