"""Reports of the tasks of each pipeline: written by its stream thread, read by the threads that serve HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from processor.installation.hold import Hold


SETTLING_S: Final = 5.0
"""How long a new member without partitions waits for its first ones.

A cooperative rebalance takes two rounds: in the first one the other members give partitions up, and a new member gets
none. They notice the second round by a heartbeat, each second.
"""


class RestoreReport(NamedTuple):
    """The progress of one restore."""

    done: int
    """Offsets of the SOW topic, and of the marks, that were read."""
    total: int
    """Offsets to read in all, as far as is known."""
    seconds: float
    """Time since the first offset was read."""

    @property
    def remaining_s(self) -> float | None:
        """Estimated seconds to the end, by the rate until now; None before the first offset."""
        return None if self.done == 0 else (self.total - self.done) * self.seconds / self.done


class TaskReport(NamedTuple):
    """One partition as its thread saw it last."""

    state: TaskState
    """The state; `HELD` while it is held."""
    lag: int | None
    """Input offsets still to be processed; None unless it runs."""
    restore: RestoreReport | None
    """The progress of the restore; None if there is nothing to read, or it is not known yet."""
    hold: Hold | None
    """The hold, also while a held partition is being retried; None if it has made progress since, or was never held."""


class PipelineReport:
    """The last report of one pipeline's tasks. One thread writes; others may read, as values are replaced as a whole.

    A thread that has the partitions of its group for the first time calls `joined`, even if it has none of them.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start without tasks, outside the group.

        Args:
            clock_s: a clock that does not jump, in seconds.
        """
        self._clock_s = clock_s
        self.is_member = False
        """Whether the group has assigned partitions, or none of them, to this thread."""
        self.tasks: Mapping[int, TaskReport] = {}
        """The report of each assigned partition."""
        self._joined_s = 0.0
        self._restores: dict[int, tuple[float, int]] = {}  # Start time and total of each restore.

    def clear(self) -> None:
        """Forget everything: the thread ends or begins."""
        self.is_member, self.tasks, self._restores = False, {}, {}

    def joined(self, is_member: bool) -> None:
        """Note whether the thread is a member of its group."""
        if is_member and not self.is_member:
            self._joined_s = self._clock_s()
        self.is_member = is_member

    @property
    def is_settling(self) -> bool:
        """True for a new member that may get its first partitions yet."""
        return self.is_member and not self.tasks and self._clock_s() - self._joined_s < SETTLING_S

    def update(
        self,
        states: Mapping[int, TaskState],
        remaining: Mapping[int, int],
        holds: Mapping[int, Hold],
        lags: Mapping[int, int] | None = None,
    ) -> None:
        """Replace the report.

        Args:
            states: the state of each assigned partition.
            remaining: the offsets still to be restored, by partition, as far as they are known.
            holds: the last hold of partitions that have made no progress since.
            lags: how far running partitions are behind their input; None: as before.
        """
        before = self.tasks
        tasks = {}
        for partition, state in states.items():
            lag = None
            if state is TaskState.RUNNING:
                lag = before[partition].lag if lags is None and partition in before else (lags or {}).get(partition)
            restore = self._restore(partition, remaining.get(partition)) if state is TaskState.RESTORING else None
            tasks[partition] = TaskReport(state, lag, restore, holds.get(partition))
        restoring = {partition for partition, state in states.items() if state is TaskState.RESTORING}
        self._restores = {number: begun for number, begun in self._restores.items() if number in restoring}
        self.tasks = tasks

    def _restore(self, partition: int, remaining: int | None) -> RestoreReport | None:
        """The progress of a restore, by the offsets that remain; None: they are not known yet."""
        if remaining is None:
            return None
        now_s = self._clock_s()
        began_s, total = self._restores.get(partition, (now_s, remaining))
        total = max(total, remaining)
        self._restores[partition] = began_s, total
        return RestoreReport(total - remaining, total, now_s - began_s)
