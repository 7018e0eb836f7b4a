"""Shows in the metrics how the tasks of a thread stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.runtime import input_room
from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.runtime.holding.held_tasks import HeldTasks
    from processor.runtime.process.metrics import ThreadMetrics
    from processor.runtime.task import Task


class ShownTasks:
    """The metrics that are set from time to time, not with each batch. One thread only."""

    def __init__(self, pipeline: Pipeline, metrics: ThreadMetrics, held: HeldTasks) -> None:
        """Show nothing yet.

        Args:
            pipeline: whose tasks.
            metrics: where they are shown.
            held: knows which of them are held.
        """
        self._pipeline = pipeline
        self._metrics = metrics
        self._held = held

    def rebalanced(self, kind: str, tasks: Mapping[int, Task]) -> None:
        """The assignment changed: these are the tasks now."""
        self._metrics.rebalanced(kind, self._states(tasks))

    def task_states(self, tasks: Mapping[int, Task], remaining: Mapping[int, int]) -> None:
        """The state of each task, and the offsets that are still to be restored."""
        self._metrics.states(self._states(tasks), remaining)

    def gauges(self, tasks: Mapping[int, Task], remaining: Mapping[int, int]) -> None:
        """The same, and what the processors that run say of themselves."""
        self.task_states(tasks, remaining)
        running = [task for task in tasks.values() if task.task_state is TaskState.RUNNING]
        self._metrics.gauges({task.partition: task.gauges for task in running})

    def states(self, running: Sequence[Task], lag: Callable[[int, int], int], now_ms: int) -> None:
        """How far the running tasks are behind their input, and what their states take.

        Args:
            running: the tasks.
            lag: how many offsets a position of a partition is behind its end.
            now_ms: the wall clock, milliseconds since the epoch.
        """
        lags = {task.partition: lag(task.partition, task.next_offset) for task in running}
        self._metrics.lag(lags)
        times_ms = {task.partition: task.stream_time_ms for task in running}
        self._metrics.room(input_room.of(self._pipeline.source, lags, times_ms, now_ms))
        self._metrics.state_bytes({task.partition: task.state.usage() for task in running})

    def _states(self, tasks: Mapping[int, Task]) -> dict[int, TaskState]:
        return {
            partition: TaskState.HELD if self._held.is_held(partition) else task.task_state
            for partition, task in tasks.items()
        }
