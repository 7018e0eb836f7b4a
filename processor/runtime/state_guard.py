"""A context manager around each use of a task's state. A class, as entering a generator takes five times as long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from processor.errors import TransactionAborted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from processor.errors import StateDamaged
    from processor.runtime.process.watchdog import ProcessorCall
    from processor.runtime.task import Task

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


class CallGuard(StateGuard):
    """The same around a call of the task's processor, which the watchdog limits."""

    __slots__ = ("_call",)

    def __init__(
        self,
        handle: Callable[[Task, BaseException], None],
        call: ProcessorCall,
        task: Task,
        first: int,
        last: int | None = None,
    ) -> None:
        """Begin a call with the records of these input offsets; None: of one."""
        super().__init__(handle, task)
        self._call = call
        call.begin(task.partition, first, first if last is None else last)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the call and the block."""
        self._call.end()
        super().__exit__(kind, error, trace)


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
