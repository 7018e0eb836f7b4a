"""The loop's access to the states of its tasks: a guard around each use, and writes to the stores a piece per turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import TransactionAborted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from processor.errors import StateDamaged
    from processor.runtime.task import Task
    from processor.store.layered_state import LayeredState


log = structlog.stdlib.get_logger("sowstream.thread")


class StateGuard:
    """Calls a handler with the error that ends its `with` block; the error is raised afterwards, or the handler's."""

    __slots__ = ("_handle", "_task")

    def __init__(self, handle: Callable[[Task, BaseException], None], task: Task) -> None:
        self._handle = handle
        self._task = task

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the block."""
        if error is not None:
            self._handle(self._task, error)


def wipe_state(task: Task, error: StateDamaged, finish_commit: Callable[[], None]) -> None:
    """Wipe the damaged state of a task, after the commit under way.

    Raises:
        TransactionAborted: always; the rewind that follows restores the state.
    """
    log.error("local state damaged; restoring it from the SOW topic", partition=task.partition, why=str(error))
    try:
        finish_commit()  # Before the wipe: afterwards it would give the empty state a position.
    finally:
        for store in task.stores:
            store.heal(error)
    raise TransactionAborted(str(error)) from error


_BEGIN: Final = 0.75
"""Share of the memory limit at which writing begins: the rest is for records that arrive meanwhile."""
_STEP: Final = 0.2
"""Share of the limit that must be added, by the estimate, before the bytes are counted exactly once more. So the
memory stays below the limit, and keys that change repeatedly are not counted at every turn."""
_KEYS_MIN: Final = 1_000
"""Least piece, which takes 2 to 4 ms: an unnoticeable delay of a record."""


class WriteBack:
    """Begins when much data waits or has waited long, and then writes a piece per turn.

    Writing all at once would take a good part of a second and delay the records of that time. A piece has more keys
    than the turn took records, so that writing ends at any rate of input.
    """

    def __init__(self, bytes_max: int, interval_s: float, now_s: float) -> None:
        """Begin with no data waiting.

        Args:
            bytes_max: the bytes that may wait, of all tasks.
            interval_s: the time that data may wait before writing begins.
            now_s: the monotonic clock.
        """
        self._bytes_max = bytes_max
        self._interval_s = interval_s
        self._began_s = now_s
        self._look_bytes = _BEGIN * bytes_max  # The estimate at which the bytes are counted exactly.

    def is_due(self, tasks: Sequence[Task], now_s: float) -> bool:
        """Decide whether to begin now; if so, the caller must begin."""
        is_much = not is_writing(tasks) and self._is_much(tasks)
        if not is_much and now_s - self._began_s < self._interval_s:
            return False
        self._began_s, self._look_bytes = now_s, _BEGIN * self._bytes_max
        return True

    def pieces(self, tasks: Sequence[Task], taken: int) -> list[tuple[Task, LayeredState, int]]:
        """Choose the pieces to write in a turn that took so many records: tasks, states, and the keys of each.

        A piece of one state; all data of all tasks if more waits than may.
        """
        writing = [(task, store) for task in tasks for store in task.stores if store.is_writing]
        if not writing:
            return []
        if _waiting(tasks) >= self._bytes_max and _counted(tasks) >= self._bytes_max:
            return [(task, store, sys.maxsize) for task, store in writing]
        return [(*writing[0], _KEYS_MIN + taken)]

    def _is_much(self, tasks: Sequence[Task]) -> bool:
        """Return whether enough data waits to begin; counted exactly once the estimate is high enough."""
        if _waiting(tasks) < self._look_bytes:
            return False
        counted, begin = _counted(tasks), _BEGIN * self._bytes_max
        self._look_bytes = max(begin, counted + _STEP * self._bytes_max)
        return counted >= begin


def start_writing(tasks: Sequence[Task], now_ms: int) -> None:
    """Start writing all states; `now_ms` is a time before all later records of their SOW topics."""
    for task in tasks:
        for store in task.stores:
            store.start_writing(task.as_of_ms(store, now_ms))


def is_writing(tasks: Sequence[Task]) -> bool:
    """Return whether a task has pieces left to write."""
    return any(store.is_writing for task in tasks for store in task.stores)


def _counted(tasks: Sequence[Task]) -> int:
    """Count the waiting bytes exactly, each key once."""
    for task in tasks:
        for store in task.stores:
            store.recount()
    return _waiting(tasks)


def _waiting(tasks: Sequence[Task]) -> int:
    """Estimate the waiting bytes."""
    return sum(store.unwritten_bytes for task in tasks for store in task.stores)
