"""The holds of a thread: reason, offset and next retry of each held partition."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from processor.errors import PartitionHeld
from processor.installation.hold import Hold, Resume
from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from queue import SimpleQueue

    from processor.runtime.metrics import ThreadMetrics
    from processor.runtime.task import Task

__all__ = ["FIRST_PAUSE_S", "PAUSE_MAX_S", "Hold", "Holds", "Resume"]


FIRST_PAUSE_S: Final = 1.0
"""Time until the first retry of a held partition."""
PAUSE_MAX_S: Final = 300.0
"""Longest time between two retries; each pause is twice as long as the one before."""

_BY_ORDER_S: Final = 1e9
"""Pause of a partition whose retry may end the process: it waits for an operator's order."""


class Holds:
    """The held partitions of one thread. One thread only.

    A partition without progress after a retry is held for twice as long. After a commit `released` forgets its hold.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, now_ms: Callable[[], int] | None = None) -> None:
        """Begin without held partitions.

        Args:
            clock_s: a clock that does not jump, in seconds.
            now_ms: the wall clock, milliseconds since the epoch; None: the system's.
        """
        self._clock_s = clock_s
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._holds: dict[int, Hold] = {}
        self._asked: set[int] = set()  # Partitions that were retried, without known progress yet.

    def add(self, partition: int, error: PartitionHeld, offset: int) -> Hold:
        """Hold a partition, for twice as long as the last time if it has made no progress since."""
        before = self._holds.get(partition)
        self._asked.discard(partition)
        tries = 0 if before is None else before.tries + 1
        since_ms = self._now_ms() if before is None else before.since_ms
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(tries, 16), PAUSE_MAX_S)
        if error.reason == "stuck":
            pause_s = _BY_ORDER_S
        order_ms = 0 if before is None else before.order_ms
        hold = Hold(error.reason, str(error), offset, since_ms, tries, self._clock_s() + pause_s, order_ms)
        self._holds[partition] = hold
        return hold

    def take_due(self) -> list[int]:
        """Take the partitions to retry now, which are no longer held; their last holds are remembered."""
        now_s = self._clock_s()
        due = [partition for partition, hold in self.held.items() if hold.due_s <= now_s]
        self._asked.update(due)
        return due

    def ask_now(self, partition: int | None, order_ms: int = 0) -> list[int]:
        """Retry a held partition at the next turn, or all for None, by an order of a time; returns their numbers."""
        numbers = [number for number in self.held if partition in (None, number)]
        for number in numbers:
            self._holds[number] = self._holds[number]._replace(due_s=self._clock_s(), order_ms=order_ms)
        return numbers

    def last(self, partition: int) -> Hold | None:
        """The last hold of a partition that is held or was retried; None for other partitions."""
        return self._holds.get(partition)

    def released(self, partition: int) -> Hold | None:
        """Forget a partition that has made progress or has left; returns its last hold, if any."""
        self._asked.discard(partition)
        return self._holds.pop(partition, None)

    @property
    def held(self) -> dict[int, Hold]:
        """The partitions that are held now, with their holds."""
        return {partition: hold for partition, hold in self._holds.items() if partition not in self._asked}

    @property
    def asked(self) -> frozenset[int]:
        """The partitions that were retried, without known progress yet."""
        return frozenset(self._asked)


log = structlog.stdlib.get_logger("sowstream.held")

_PROVEN_S: Final = 5.0
"""Running time after which a task is no longer held, even if it had nothing to commit."""


class Notices(Protocol):
    """Publishes the held partitions of a pipeline, and receives operators' orders."""

    def report(self, pipeline: str, partition: int, hold: Hold | None) -> None:
        """Publish that a partition is held; None: that it goes on."""

    def orders(self, pipeline: str) -> SimpleQueue[Resume]:
        """The queue of orders for a pipeline."""

    def stuck(self, pipeline: str, partition: int) -> tuple[int, str] | None:
        """The offset at which a processor of a partition did not return, and the message; None: there is none."""


class HeldTasks:
    """The held tasks of one thread. One thread only."""

    def __init__(
        self,
        pipeline: str,
        metrics: ThreadMetrics,
        notices: Notices | None = None,
        holds: Holds | None = None,
    ) -> None:
        """Begin without held tasks.

        Args:
            pipeline: its name.
            metrics: shows the number of held tasks.
            notices: publishes each hold, and receives orders; None: neither.
            holds: the holds; None: new ones on the system's clocks.
        """
        self._pipeline = pipeline
        self._metrics = metrics
        self._notices = notices
        self._orders = None if notices is None else notices.orders(pipeline)
        self.holds = Holds() if holds is None else holds
        """The held partitions."""
        self._skips: dict[int, int] = {}  # The last offset to skip, by partition, of pending orders.
        self._waiting: dict[int, Resume] = {}  # Orders that came during a retry, by partition.

    def hold(self, task: Task, error: PartitionHeld) -> None:
        """Hold a task, which the caller has closed or rewound."""
        hold = self.holds.add(task.partition, error, task.committed_offset)
        write = log.error if hold.tries == 0 else log.warning
        write(
            "partition held",
            pipeline=self._pipeline,
            partition=task.partition,
            reason=hold.reason,
            offset=hold.offset,
            tries=hold.tries,
            why=hold.message,
        )
        order = self._waiting.pop(task.partition, None)
        if order is None or not self._resume(order, task, hold):
            self._publish(task.partition, hold)  # Else it goes on at once: it has not answered the order yet.

    def inherit(self, task: Task, offset: int) -> bool:
        """Hold a task where the processor of its former owner did not return: now, or when it comes there.

        Args:
            task: a task that is about to start.
            offset: its input offset.

        Returns:
            True if it is held now.
        """
        place = self._stuck_at(task.partition)
        if place is None or place[0] < offset:
            return False
        error = PartitionHeld("stuck", place[1])
        if place[0] > offset:
            task.suspects.stop_at(place[0], error)
            return False
        task.committed_offset = offset
        self.hold(task, error)
        return True

    def task_started(self, task: Task) -> None:
        """Withdraw the hold that a former owner of the partition may have published, unless it is still to come."""
        if self._notices is None or self.holds.last(task.partition) is not None:
            return
        place = self._stuck_at(task.partition)
        if place is None or place[0] < task.committed_offset:
            self._notices.report(self._pipeline, task.partition, None)

    def _stuck_at(self, partition: int) -> tuple[int, str] | None:
        """The place at which the processor of a former owner did not return, and the message."""
        if self._notices is None or self.holds.last(partition) is not None:
            return None
        return self._notices.stuck(self._pipeline, partition)

    def forget(self, partition: int) -> None:
        """Forget a partition that has left this thread; its next owner publishes its holds."""
        self._skips.pop(partition, None)
        self._waiting.pop(partition, None)
        if self.holds.released(partition) is not None:
            self._show()

    def due(self, tasks: Mapping[int, Task]) -> list[Task]:
        """Carry out operators' orders, then return the tasks to retry now.

        Args:
            tasks: the tasks of the thread, by partition.
        """
        while self._orders is not None and not self._orders.empty():
            self._carry_out(self._orders.get(), tasks)
        held = self.holds.held
        due = [tasks[partition] for partition in self.holds.take_due() if partition in tasks]
        for task in due:
            if (until := self._skips.pop(task.partition, None)) is not None:
                task.skip(until, is_readable=held[task.partition].reason != "unreadable_batch")
        if due:
            self._show()
        return due

    def release_recovered(self, tasks: Iterable[Task]) -> None:
        """Forget the holds of tasks that have made progress since. Called twice a second and after commits."""
        for task in tasks:
            if task.partition not in self.holds.asked or task.task_state is not TaskState.RUNNING:
                continue
            hold = self.holds.last(task.partition)
            if hold is None or (task.committed_offset <= hold.offset and time.monotonic() - task.began_s < _PROVEN_S):
                continue
            self.holds.released(task.partition)
            self._waiting.pop(task.partition, None)
            log.info("partition goes on", pipeline=self._pipeline, partition=task.partition, was=hold.reason)
            self._publish(task.partition, None)

    def _carry_out(self, order: Resume, tasks: Mapping[int, Task]) -> None:
        """Retry the held partitions that an order names; it waits for those that are being retried."""
        for partition in self.holds.asked:
            if order.partition in (None, partition):
                self._waiting[partition] = order
        for partition, hold in self.holds.held.items():
            if order.partition in (None, partition) and partition in tasks:
                self._resume(order, tasks[partition], hold)

    def _resume(self, order: Resume, task: Task, hold: Hold) -> bool:
        """Retry a held partition as an order says; False if the order is not for this hold."""
        if order.skip_until is None:
            if order.at_ms < hold.since_ms:
                return False  # The order is older than this hold.
            task.limit.let_pass()
        elif 0 <= hold.offset <= order.skip_until:
            self._skips[task.partition] = order.skip_until
        else:
            return False
        if hold.reason == "stuck":
            task.process_alone(hold.offset)
        log.info("partition resumed by order", pipeline=self._pipeline, partition=task.partition, skip=order.skip_until)
        self.holds.ask_now(task.partition, order.at_ms)
        return True

    def _publish(self, partition: int, hold: Hold | None) -> None:
        """Publish and count a hold, or its end."""
        if self._notices is not None:
            self._notices.report(self._pipeline, partition, hold)
        self._show()

    def _show(self) -> None:
        self._metrics.held(Counter(hold.reason for hold in self.holds.held.values()))
