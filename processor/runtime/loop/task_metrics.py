"""Shows the progress of a thread's tasks: in gauges, and in the log while a pipeline catches up with its input."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.runtime.loop.clients import RetentionHeadroom, WaitingRecords
from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.runtime.loop.clients import Clients
    from processor.runtime.loop.held_tasks import HeldTasks
    from processor.runtime.metrics import ThreadMetrics
    from processor.runtime.task import Task


log = structlog.stdlib.get_logger("sowstream.progress")

BACKLOG_MIN: Final = 20_000
"""Least number of records of a backlog whose progress is logged."""

_EVERY_S: Final = 5.0

_UNKNOWN_S: Final = 10.0
"""Time after which a backlog is known: Kafka says where a partition ends with its first records."""


class CatchUp:
    """The progress of one pipeline through its backlog, such as the build of a view over a topic that has records."""

    def __init__(self, pipeline: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without a backlog.

        Args:
            pipeline: its name.
            clock_s: the monotonic clock.
        """
        self._pipeline = pipeline
        self._clock_s = clock_s
        self._until_s = 0.0  # A backlog that is first seen later is no beginning, but ordinary delay.
        self._began_s = self._logged_s = 0.0
        self._most = 0  # The largest number of records that remained; 0: there is no backlog.

    def expect(self) -> None:
        """Expect a backlog: partitions have been added, or are being restored."""
        self._until_s = self._clock_s() + _UNKNOWN_S

    def update(self, left: int) -> None:
        """Log the progress every few seconds, and the end.

        Args:
            left: the number of records that remain, of all partitions.
        """
        now_s = self._clock_s()
        if self._most == 0:
            if left < BACKLOG_MIN or now_s > self._until_s:
                return
            self._began_s = now_s
            self._logged_s = now_s - _EVERY_S
        self._most = max(self._most, left)
        if left < BACKLOG_MIN and now_s > self._until_s:
            log.info("caught up", pipeline=self._pipeline, records=self._most, seconds=round(now_s - self._began_s, 1))
            self._most = 0
        elif now_s - self._logged_s >= _EVERY_S:
            self._logged_s = now_s
            done = 100 * (self._most - left) // self._most
            log.info("catching up", pipeline=self._pipeline, records_left=left, percent=done)


class TaskMetrics:
    """The metrics of tasks that are set from time to time, not with each batch. One thread only."""

    def __init__(
        self,
        pipeline: Pipeline,
        metrics: ThreadMetrics,
        held: HeldTasks,
        clients: Clients,
    ) -> None:
        """Create the gauges; none is set yet.

        Args:
            pipeline: the pipeline of the tasks.
            metrics: the metrics of the thread.
            held: the held tasks among them.
            clients: the retention time of the input, what waits in Kafka, and the report for the health pages.
        """
        self._pipeline = pipeline
        self._metrics = metrics
        self._held = held
        self._headroom = clients.headroom or RetentionHeadroom()
        self._backlog = clients.backlog or WaitingRecords()
        self._report = clients.report
        self._catch_up = CatchUp(pipeline.name)
        metrics.partitions(pipeline.topic.partitions)

    def rebalanced(self, kind: str, tasks: Mapping[int, Task]) -> None:
        """Count a change of the assignment, which has left these tasks."""
        self._metrics.rebalanced(kind, self._states(tasks))
        if kind == "assigned":
            self._catch_up.expect()
        if self._report is not None:
            self._report.joined(kind != "lost")
            self._show(tasks, {})

    def task_states(self, tasks: Mapping[int, Task], remaining: Mapping[int, int]) -> None:
        """Show the state of each task and the number of offsets still to be restored."""
        self._metrics.states(self._states(tasks), remaining)
        self._show(tasks, remaining)

    def gauges(
        self, tasks: Mapping[int, Task], remaining: Mapping[int, int], lag: Callable[[int, int], int] | None = None
    ) -> None:
        """Show the same, the gauges that the running processors set, and how far the tasks are behind their input.

        Args:
            tasks: the tasks, by partition.
            remaining: the number of offsets still to be restored, by partition.
            lag: the number of offsets from a position of a partition to its end; None: not known now.
        """
        running = [task for task in tasks.values() if task.task_state is TaskState.RUNNING]
        lags = None if lag is None else {task.partition: lag(task.partition, task.next_offset) for task in running}
        self._metrics.states(self._states(tasks), remaining)
        self._show(tasks, remaining, lags)
        waiting, letters = self._backlog.input, self._backlog.letters
        others = set(tasks).difference([task.partition for task in running])
        self._metrics.lag(lags or {}, {number: waiting[number] for number in others if number in waiting})
        self._metrics.dead_letters({number: letters[number] for number in tasks if number in letters})
        if len(running) < len(tasks):
            self._catch_up.expect()
        if lags is not None:
            self._catch_up.update(sum(lags.values()))
        self._metrics.gauges({task.partition: task.gauges for task in running})

    def states(self, running: Sequence[Task], lag: Callable[[int, int], int], now_ms: int) -> None:
        """Show for how long Kafka keeps the next records of the running tasks, and the size of their states.

        Args:
            running: the tasks.
            lag: the number of offsets from a position of a partition to its end.
            now_ms: the wall clock, milliseconds since the epoch.
        """
        lags = {task.partition: lag(task.partition, task.next_offset) for task in running}
        times_ms = {task.partition: task.stream_time_ms for task in running}
        self._metrics.room(self._headroom.of_partitions(self._pipeline.source, lags, times_ms, now_ms))
        self._metrics.state_bytes({task.partition: task.state.usage() for task in running})

    def _show(
        self, tasks: Mapping[int, Task], remaining: Mapping[int, int], lags: Mapping[int, int] | None = None
    ) -> None:
        """Report the tasks to the health pages."""
        if self._report is not None:
            holds = {partition: hold for partition in tasks if (hold := self._held.holds.last(partition)) is not None}
            self._report.update(self._states(tasks), remaining, holds, lags)

    def _states(self, tasks: Mapping[int, Task]) -> dict[int, TaskState]:
        return {
            partition: TaskState.HELD if partition in self._held.holds.held else task.task_state
            for partition, task in tasks.items()
        }
