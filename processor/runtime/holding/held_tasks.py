"""The held partitions of a stream thread: what is told of them, and what operators order."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from processor.runtime.holding.holds import Holds
from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from queue import SimpleQueue

    from processor.errors import PartitionHeld
    from processor.runtime.holding.holds import Hold, Resume
    from processor.runtime.process.metrics import ThreadMetrics
    from processor.runtime.task import Task

log = structlog.stdlib.get_logger("sowstream.held")

_PROVEN_S: Final = 5.0
"""A task that has run for as long since it was asked again is held no more, even where it had nothing to commit."""


class Notices(Protocol):
    """Takes what is to be told of a pipeline's partitions, and gives operators' orders."""

    def tell(self, pipeline: str, partition: int, hold: Hold | None) -> None:
        """A partition is held, or, None, goes on."""

    def orders(self, pipeline: str) -> SimpleQueue[Resume]:
        """Where the orders for a pipeline arrive."""


class HeldTasks:
    """Keeps account of the tasks of one thread that do not go on. One thread only."""

    def __init__(
        self,
        pipeline: str,
        metrics: ThreadMetrics,
        notices: Notices | None = None,
        holds: Holds | None = None,
    ) -> None:
        """Hold nothing.

        Args:
            pipeline: its name.
            metrics: shows how many are held.
            notices: told of each hold; None: nobody is, and nobody orders anything.
            holds: the account; None: one on the system's clocks.
        """
        self._pipeline = pipeline
        self._metrics = metrics
        self._notices = notices
        self._orders = None if notices is None else notices.orders(pipeline)
        self._holds = Holds() if holds is None else holds
        self._skips: dict[int, int] = {}  # Last offsets to be skipped, by partition, of orders not carried out yet.

    @property
    def is_any(self) -> bool:
        """Whether a task is held, or was until a moment ago."""
        return bool(self._holds.held or self._holds.asked)

    def is_held(self, partition: int) -> bool:
        """Whether a partition is not to be given anything."""
        return partition in self._holds.held

    def hold(self, task: Task, error: PartitionHeld) -> None:
        """A task cannot go on: it is closed or rewound by the caller."""
        hold = self._holds.add(task.partition, error, task.committed_offset)
        say = log.error if hold.tries == 0 else log.warning
        say(
            "partition held",
            pipeline=self._pipeline,
            partition=task.partition,
            reason=hold.reason,
            offset=hold.offset,
            tries=hold.tries,
            why=hold.message,
        )
        self._told(task.partition, hold)

    def began(self, task: Task) -> None:
        """A task runs: what an owner before us told of its partition is over, unless it was held by us."""
        if self._notices is not None and self._holds.last(task.partition) is None:
            self._notices.tell(self._pipeline, task.partition, None)

    def forget(self, partition: int) -> None:
        """A partition has left: its next owner tells of it."""
        self._skips.pop(partition, None)
        if self._holds.released(partition) is not None:
            self._show()

    def due(self, tasks: Mapping[int, Task]) -> list[Task]:
        """Take operators' orders, then the tasks that are to be asked again now.

        Args:
            tasks: those of the thread, by partition.
        """
        while self._orders is not None and not self._orders.empty():
            self._obey(self._orders.get(), tasks)
        held = self._holds.held
        due = [tasks[partition] for partition in self._holds.take_due() if partition in tasks]
        for task in due:
            if (until := self._skips.pop(task.partition, None)) is not None:
                task.host.skip(until, is_readable=held[task.partition].reason != "unreadable_batch")
        if due:
            self._show()
        return due

    def went_on(self, tasks: Iterable[Task]) -> None:
        """Forget the holds of tasks that have got further since. Called about once a turn while there are any."""
        for task in tasks:
            if task.partition not in self._holds.asked or task.task_state is not TaskState.RUNNING:
                continue
            hold = self._holds.last(task.partition)
            if hold is None or (task.committed_offset <= hold.offset and task.host.running_s < _PROVEN_S):
                continue
            self._holds.released(task.partition)
            log.info("partition goes on", pipeline=self._pipeline, partition=task.partition, was=hold.reason)
            self._told(task.partition, None)

    def _obey(self, order: Resume, tasks: Mapping[int, Task]) -> None:
        """Have held partitions asked again, and let what stops them pass, as far as the order says."""
        for partition, hold in self._holds.held.items():
            if order.partition not in (None, partition) or partition not in tasks:
                continue
            if order.skip_until is None:
                if order.at_ms < hold.since_ms:
                    continue  # It was given for an earlier hold.
                tasks[partition].host.let_pass()
            elif 0 <= hold.offset <= order.skip_until:
                self._skips[partition] = order.skip_until
            else:
                continue
            log.info("partition resumed by order", pipeline=self._pipeline, partition=partition, skip=order.skip_until)
            self._holds.ask_now(partition)

    def _told(self, partition: int, hold: Hold | None) -> None:
        if self._notices is not None:
            self._notices.tell(self._pipeline, partition, hold)
        self._show()

    def _show(self) -> None:
        self._metrics.held(Counter(hold.reason for hold in self._holds.held.values()))
