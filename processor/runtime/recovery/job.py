"""The restore of one partition, its progress for metrics and a terminal, and the detection of restores that stall.

A stalled restore is logged with its reason, and ended after the timeout.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from processor.errors import PartitionHeld, Stop
from processor.hosting.commit_metadata import Redelivered
from processor.kafka import outage
from processor.runtime.metrics import RESTORED
from processor.runtime.recovery.restore_range import place_question

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.questions import PartitionQuestion
    from processor.kafka.clients.log_reader import LogReader
    from processor.record import Record
    from processor.runtime.recovery.input_position import Beginning, Start
    from processor.runtime.recovery.log_replay import LogReplay, PresentKeys
    from processor.runtime.task import Task
    from processor.store.layered_state import LayeredState


log = structlog.stdlib.get_logger("sowstream.restore")

_PATIENCE_S: Final = 1.0  # A shorter restore has no bar.
_SLOW_S: Final = 5.0
_LINE_INTERVAL_S: Final = 30.0
_RENEW_S: Final = 10.0  # Time without a record before the reader reconnects, and between two reconnections.


class RestoreBar:
    """The progress bars of a process, one for each restoring processor; none without a terminal."""

    def __init__(self, console: Console | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Create the object without bars.

        Args:
            console: the output; standard error by default.
            clock_s: the monotonic clock.
        """
        self._console = console or Console(stderr=True)
        # A dumb terminal gets empty lines of a bar, and several processes would write over one another.
        can_draw = self._console.is_terminal and not self._console.is_dumb_terminal
        self._is_shown = can_draw and multiprocessing.parent_process() is None
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[float, int]] = {}  # Start time and largest number of remaining offsets.
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    def update(self, processor: str, left: int) -> None:
        """Show the number of remaining offsets of a processor; 0: it is done. Any thread may call it."""
        if not self._is_shown:
            return
        with self._lock:
            if left == 0:
                self._begun.pop(processor, None)
                self._remove(processor)
                return
            began_s, most = self._begun.get(processor, (self._clock_s(), 0))
            most = max(most, left)
            self._begun[processor] = began_s, most
            if self._clock_s() - began_s > _PATIENCE_S:
                self._draw(processor, most - left, most)

    def _draw(self, processor: str, done: int, total: int) -> None:
        if self._progress is None:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
        if processor not in self._tasks:
            self._tasks[processor] = self._progress.add_task(f"restoring {processor}")
        self._progress.update(self._tasks[processor], completed=done, total=total)

    def _remove(self, processor: str) -> None:
        task = self._tasks.pop(processor, None)
        if self._progress is None or task is None:
            return
        self._progress.remove_task(task)
        if not self._tasks:
            self._progress.stop()
            self._progress = None


class RestoreProgress:
    """The progress of one restorer: restored records go to the metrics, remaining offsets to the bar."""

    def __init__(self, processor: str, bar: RestoreBar) -> None:
        self._processor = processor
        self._bar = bar
        self._restored = RESTORED.labels(processor)

    def took(self, records: int) -> None:
        """Count restored records."""
        self._restored.inc(records)

    def left(self, offsets: int) -> None:
        """Show the remaining offsets of all partitions."""
        self._bar.update(self._processor, offsets)


@dataclass(slots=True, eq=False)
class RestoreJob:
    """The restore of one partition, as far as it has come."""

    task: Task
    began_s: float  # On the monotonic clock.
    start: Start | None = None  # Where the input continues, by the group's offset.
    beginning: Beginning | None = None  # Where the input continues instead.
    logs: dict[str, LogReplay] = field(default_factory=dict)  # By topic; empty if there is nothing to restore.
    why_closed: str = ""  # Why its directory is not open yet.
    read: int = 0
    sow_read: int = 0
    opened_at: int = 0  # The SOW position of its state when it was opened.
    present: PresentKeys | None = None  # The keys of the input, after an outage in which deletes may have gone.
    is_ready_to_compare: bool = False  # All is restored, and another partition is being compared with its input.
    damages: int = 0  # How often its store was wiped during the restore.
    logged_s: float = field(default=0.0)

    @property
    def remaining(self) -> int:
        """Number of offsets still to restore."""
        return sum(max(0, part.target - part.position) for part in self.logs.values())

    @property
    def next_log(self) -> LogReplay | None:
        """The first log that is not complete; None: all are, or there are none yet."""
        return next((part for part in self.logs.values() if not part.is_complete), None)

    def missed(self, offset: int) -> list[Record]:
        """Return the deletes that are gone from the input, for a task that goes on at an offset."""
        if self.present is None:
            return []
        deletes = self.present.deletes(offset)
        if deletes:
            where = {"topic": self.present.topic, "partition": self.present.partition}
            log.warning("deleted while this group was away", **where, records=len(deletes))
        return deletes

    def log_restored(self, kafka_topic: str) -> None:
        """Log the end of the restore."""
        seconds = round(time.monotonic() - self.began_s, 3)
        rate, where = round(self.read / max(seconds, 0.001)), {"topic": kafka_topic, "partition": self.task.partition}
        log.info("restored", **where, read=self.sow_read, seconds=seconds, records_per_s=rate)


def moved_start(start: Start, beginning: Beginning) -> Start:
    """Replace the start of the input by a beginning that the input position has decided."""
    redelivered = Redelivered.from_metadata(beginning.offset, beginning.metadata)
    return start._replace(offset=beginning.offset, redelivered=redelivered, is_new=False, metadata=beginning.metadata)


def open_stores(
    task: Task, open_state: Callable[[int], LayeredState], open_table: Callable[[int], LayeredState] | None
) -> None:
    """Open the state of a task, and its table if its processor keeps one."""
    state = open_state(task.partition)
    if open_table is None:
        task.open(state)
        return
    try:
        table = open_table(task.partition)
    except BaseException:
        state.close(0)  # It is opened again with the table, in a later turn.
        raise
    task.open(state, table)


def log_restoring(part: LogReplay) -> None:
    """Log the progress of a topic's restore."""
    log.info("restoring", topic=part.topic, partition=part.partition, position=part.position, end=part.target)


def stop_for_hold(_task: Task, error: PartitionHeld) -> NoReturn:
    """Raise the reason why a partition cannot be restored, if no caller can hold it."""
    raise Stop(str(error)) from error


@dataclass(slots=True)
class _Wait:
    """The wait of one partition."""

    moved_s: float
    line_s: float = 0.0  # When it was last logged.


class Stalls:
    """The time that each partition has made no progress. One thread only.

    Time while no broker answers does not count: then all partitions wait, and none is at fault.
    """

    def __init__(self, admin: Admin, reader: LogReader, topic: str, timeout_s: float) -> None:
        """Begin without partitions.

        Args:
            admin: asked for the last stable offsets.
            reader: reads the records; renewed when none arrive.
            topic: named in messages about a partition.
            timeout_s: how long a partition may make no progress.
        """
        self._admin = admin
        self._reader = reader
        self._topic = topic
        self._timeout_s = timeout_s
        self._waits: dict[int, _Wait] = {}
        self._ask_stable: dict[str, PartitionQuestion[int]] = {}
        self._renewed_s = 0.0

    def moved(self, partition: int) -> None:
        """Restart the time of a partition that has made progress, or waits for a reason that is no stall."""
        self._waits[partition] = _Wait(time.monotonic())
        self._forget_stable(partition)

    def forget(self, partition: int) -> None:
        """Forget a partition that is no longer restored."""
        self._waits.pop(partition, None)
        self._forget_stable(partition)

    def is_slow(self, partition: int) -> bool:
        """Return whether a partition has made no progress for some seconds."""
        wait = self._waits.get(partition)
        return wait is not None and time.monotonic() - wait.moved_s > _SLOW_S

    def check(
        self, partition: int, awaited: str, part: LogReplay | None, *, is_in_balance: bool
    ) -> PartitionHeld | None:
        """Log a partition that waits; returns the reason to hold it after the timeout, else None.

        Args:
            partition: its number.
            awaited: the event that it waits for, described for people.
            part: the log that is being read; None: none yet.
            is_in_balance: whether an open transaction keeps Kafka from answering for its committed offset.
        """
        now_s = time.monotonic()
        wait = self._waits[partition]
        if outage.is_away():
            wait.moved_s = now_s
            return None
        waited_s = now_s - wait.moved_s
        if waited_s > min(_SLOW_S, self._timeout_s / 2):
            self._look(part, waited_s, now_s)
        if waited_s > _SLOW_S and now_s - wait.line_s > _LINE_INTERVAL_S:
            wait.line_s = now_s
            log.warning(
                "a restore waits", topic=self._topic, partition=partition, waits_for=awaited, seconds=round(waited_s, 1)
            )
        if waited_s <= self._timeout_s:
            return None
        if self._admin.looked_s < wait.moved_s + self._timeout_s:
            self._admin.refresh()  # To see whether Kafka answers other questions.
            return None
        return self._held(partition, awaited, part, is_in_balance=is_in_balance)

    def turn(self) -> None:
        """Take the answers that have come."""
        for question in self._ask_stable.values():
            question.turn()

    def _look(self, part: LogReplay | None, waited_s: float, now_s: float) -> None:
        """Ask whether a transaction is open in the log; reconnect the reader if none explains the wait."""
        if part is None:
            return
        if part.topic not in self._ask_stable:
            self._ask_stable[part.topic] = place_question(self._admin, part.topic, "stable_end")
        if (stable := self._stable_end(part)) is None:
            self._ask_stable[part.topic].want(part.partition)
        is_open = stable is not None and stable < part.target
        if not is_open and waited_s > _RENEW_S and now_s - self._renewed_s > _RENEW_S:
            self._renewed_s = now_s
            self._reader.renew()

    def _held(self, partition: int, awaited: str, part: LogReplay | None, *, is_in_balance: bool) -> PartitionHeld:
        """Create the reason to hold a partition."""
        stable = None if part is None else self._stable_end(part)
        if is_in_balance or (part is not None and stable is not None and stable < part.target):
            where = "" if stable is None else f" from offset {stable} on"
            return PartitionHeld(
                "open_transaction",
                f"restoring {self._topic} partition {partition}: nothing for {self._timeout_s:g} s, waiting for "
                f"{awaited}. A transaction is open there{where}. That of a dead worker is ended by the broker after "
                "its transaction.timeout.ms; one that Kafka has lost sight of (KAFKA-20734) stays open until it is "
                "settled: `sowstream transactions list` names it",
            )
        return PartitionHeld(
            "kafka_silent",
            f"restoring {self._topic} partition {partition}: nothing for {self._timeout_s:g} s, waiting for {awaited}. "
            "Other questions are answered: is the partition's leader, or the group's coordinator, away? "
            "`sowstream doctor` looks closer",
        )

    def _forget_stable(self, partition: int) -> None:
        for question in self._ask_stable.values():
            question.forget(partition)

    def _stable_end(self, part: LogReplay) -> int | None:
        """The last stable offset of a log; None: it is not known."""
        question = self._ask_stable.get(part.topic)
        return None if question is None else question.answers.get(part.partition)
