"""A context manager around each use of a task's state. A class, as entering a generator takes five times as long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from processor.runtime.task import Task


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
