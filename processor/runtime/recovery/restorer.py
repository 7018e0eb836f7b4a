"""Restores the states and marks of partitions from Kafka, on a consumer of its own, a batch at a time."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING

import structlog

from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    PartitionHeld,
    PositionLost,
    StateBehind,
    StateDamaged,
    StateLocked,
)
from processor.hosting.commit_metadata import CommitMetadata, Redelivered
from processor.kafka import errors as kafka_errors
from processor.kafka.clients.log_reader import LogReader, Position, ReadResult
from processor.kafka.message import by_log
from processor.runtime.recovery.input_comparison import InputComparison
from processor.runtime.recovery.input_position import Beginning, InputPositions
from processor.runtime.recovery.job import (
    RestoreJob,
    Stalls,
    log_restoring,
    moved_start,
    open_stores,
    stop_for_hold,
)
from processor.runtime.recovery.log_replay import LogReplay, replays
from processor.runtime.recovery.restore_range import RestoreRange, RestoreRanges
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.runtime.recovery.input_position import Start
    from processor.runtime.recovery.job import RestoreProgress
    from processor.store.layered_state import LayeredState

    Open = Callable[[int], LayeredState]

log = structlog.stdlib.get_logger("sowstream.restore")

_BATCH_RECORDS_MAX = 2_000  # Fits into a CPU's cache: each record of a batch five times as large takes 50 % longer.
_TURN_S = 0.05  # Longest wait of ready partitions for those being restored, apart from the last batch.
_OPEN_S = 0.5  # Longest time to open partitions in one turn; ready partitions wait meanwhile.
_LOCK_PATIENCE_S = 60.0
_LOG_INTERVAL_S = 2.0
_DAMAGES_MAX = 3


class Restorer:
    """Restores partitions while ready partitions go on. One thread only.

    A partition is ready when its SOW topic, its mark topic and its table have been read to their true ends: to a record
    there or behind, or to an end-of-partition event, as the last offsets may have no record. The ends are asked for
    after the group's committed input offset is known, because offset, records and marks are committed in one
    transaction. A partition that cannot be restored is held, and delays no other.
    """

    def __init__(
        self,
        *,
        reader: LogReader,
        admin: Admin,
        source: str,
        sow: str | None,
        mark: str | None,
        open_state: Open,
        stall_timeout_s: float,
        progress: RestoreProgress | None = None,
        open_table: Open | None = None,
        is_copy: bool = False,
        positions: InputPositions | None = None,
    ) -> None:
        """Create a restorer.

        Args:
            reader: a reader of the input's consumer group that reports errors by partition; owned by the restorer.
            admin: asked for the group's offsets, and for the first and last offsets of the topics.
            source: the input topic.
            sow: the topic from which states are restored; None if the processor has none.
            mark: the topic from which marks are restored; None if the processor has none.
            open_state: opens the state of a partition.
            stall_timeout_s: how long a restore may make no progress while Kafka answers other questions.
            progress: shows the progress to people and metrics.
            open_table: opens the table that a partition's processor keeps of the input; None: it keeps none.
            is_copy: whether the states are derived from another family, whose topic may have been recreated since.
            positions: decides where the input begins; None: the group's offset decides alone.
        """
        self._reader = reader
        self._source = source
        self._sow = sow
        self._shown = sow or source  # Named in messages about a partition.
        self._mark = mark
        self._open_state = open_state
        self._open_table = open_table
        self._progress = progress
        self._is_copy = is_copy
        is_compared = is_copy and sow is not None and open_table is None  # Else the plug-in compares its table.
        self._decides = positions is not None
        self._positions = positions or InputPositions("", source.rpartition(".")[0], source)
        if positions is None or mark is None:
            self._positions.topic_id = "not asked: nothing is compared with it"
        self.on_held: Callable[[Task, PartitionHeld], None] = stop_for_hold
        """Called with a partition that cannot be restored, and the reason."""
        self._ranges = RestoreRanges(
            admin,
            self._positions,
            group=reader.group,
            source=source,
            sow=sow,
            mark=mark,
            table=open_table is not None,
            is_copy=is_compared,
        )
        self._stalls = Stalls(admin, reader, self._shown, stall_timeout_s)
        self._jobs: dict[int, RestoreJob] = {}
        self.comparison = InputComparison(
            admin, reader, source, self._jobs, self._stalls, self._ranges.horizons_ms, is_on=is_compared
        )
        """Compares states with the keys of the input."""

    def add(self, task: Task) -> None:
        """Begin to restore a task's partition."""
        now_s = time.monotonic()
        self._jobs[task.partition] = RestoreJob(task, now_s, logged_s=now_s)
        self._stalls.moved(task.partition)
        if task.task_state is not TaskState.CREATED:
            self._ranges.add(task.partition)

    def remove(self, partition: int) -> None:
        """Stop restoring a partition, if it was being restored."""
        self._ranges.remove(partition)
        self.comparison.forget(partition)
        self._stalls.forget(partition)
        if (job := self._jobs.pop(partition, None)) is not None:
            for part in job.logs.values():
                if not part.is_complete:
                    self._reader.remove(part.topic, partition)

    @property
    def is_busy(self) -> bool:
        """True if any partition is not ready."""
        return bool(self._jobs)

    @property
    def remaining(self) -> dict[int, int]:
        """Number of offsets still to restore, by partition."""
        return {partition: job.remaining for partition, job in self._jobs.items() if job.logs}

    def advance(self, timeout_s: float) -> list[tuple[Task, int]]:
        """Restore one batch; returns the tasks that are ready, each with its input offset.

        Raises:
            DiskUnusable: no state can be written.
            ConfigurationError: Kafka refuses a question.
        """
        ready: list[tuple[Task, int]] = []
        self._open()
        for number, outcome in self._ranges.turn().items():
            self._begin(self._jobs[number], outcome, ready)
        if (job := self.comparison.take_next()) is not None:
            with self._repair(job):
                self._complete(job, ready)
        for job, present in self.comparison.take_ended():
            with self._repair(job):
                self._finish(job, present, present.position, ready)
        until_s = time.monotonic() + _TURN_S
        while any(job.logs for job in self._jobs.values()):
            read = self._reader.read(_BATCH_RECORDS_MAX, timeout_s)
            self._apply(read, ready)
            if ready or len(read.messages) < _BATCH_RECORDS_MAX or time.monotonic() >= until_s:
                break
            timeout_s = 0.0
        else:
            if not ready and self._jobs:
                time.sleep(timeout_s)  # Nothing to read: directories are locked, or answers are outstanding.
        self._watch()
        self._show()
        return ready

    def close(self) -> None:
        """Close the connection; partial restores stay on disk."""
        for partition in list(self._jobs):
            self._ranges.remove(partition)
        self._jobs.clear()
        self._show()
        self._reader.close()

    def _open(self) -> None:
        """Open the state directories; those that are still locked are tried again in the next turn."""
        until_s = time.monotonic() + _OPEN_S
        is_late = False
        for job in [job for job in self._jobs.values() if job.task.task_state is TaskState.CREATED]:
            if is_late:
                self._stalls.moved(job.task.partition)  # It waits for its turn, which is no stall.
                continue
            with self._repair(job):
                self._open_one(job)
            # Opening hundreds would take longer than the transaction timeout of ready partitions.
            is_late = time.monotonic() > until_s

    def _open_one(self, job: RestoreJob) -> None:
        partition = job.task.partition
        try:
            open_stores(job.task, self._open_state, self._open_table)
        except StateLocked as error:
            if time.monotonic() - job.began_s > _LOCK_PATIENCE_S:
                raise PartitionHeld("state_locked", str(error)) from error
            job.why_closed = str(error)
            self._stalls.moved(partition)  # A wait for a lock, not for Kafka.
        except BrokerUnavailable as error:
            job.why_closed = str(error)
        except ConfigurationError as error:
            if not kafka_errors.is_unknown(error):
                raise
            job.why_closed = str(error)  # The topics existed at the start: a broker has just started.
        else:
            self._stalls.moved(partition)
            self._ranges.add(partition)

    def _begin(self, job: RestoreJob, outcome: RestoreRange | PartitionHeld, ready: list[tuple[Task, int]]) -> None:
        """Start reading a partition's logs, if there are any; it is ready otherwise."""
        if isinstance(outcome, PartitionHeld):
            self._hold(job, outcome)
            return
        job.start = outcome.start if job.beginning is None else moved_start(outcome.start, job.beginning)
        self._stalls.moved(job.task.partition)
        if self._sow is not None:
            job.opened_at = job.task.state.position
        # The end of a topic does not show whether it has records: all of them may have been rolled back.
        is_whole = self._is_copy and job.start.is_new
        topics = self._sow, self._mark, self._source
        logs = replays(job.task, outcome, job.start.redelivered, topics, is_whole=is_whole)
        with self._repair(job):
            self._follow(job, logs, outcome) if logs else self._complete(job, ready)

    def _follow(self, job: RestoreJob, logs: list[LogReplay], restore_range: RestoreRange) -> None:
        """Start reading a partition's logs behind the positions of its state and marks."""
        for part in logs:
            # The marks have none.
            if (why := part.wipe_if_stale(self._ranges.horizons_ms.get(part.topic, math.inf))) is not None:
                log.warning("local state wiped", topic=part.topic, partition=part.partition, why=why)
            if part.position < part.target:
                log_restoring(part)
        job.logs = {part.topic: part for part in logs}
        # The reader reports the end of a partition also if there is nothing to read.
        self._reader.add(
            Position(part.topic, part.partition, max(part.position, restore_range.oldest[part.topic])) for part in logs
        )

    def _apply(self, read: ReadResult, ready: list[tuple[Task, int]]) -> None:
        """Apply the messages, and complete the logs that have ended."""
        for (topic, partition), messages in by_log(read.messages).items():
            if (job := self._jobs.get(partition)) is not None and topic in job.logs:
                with self._repair(job):
                    self._apply_batch(job, job.logs[topic], messages, ready)
        for topic, partition, end in read.ends:
            job = self._jobs.get(partition)
            part = None if job is None else job.logs.get(topic)
            if job is not None and part is not None and not part.is_complete and end >= part.target:
                with self._repair(job):
                    self._finish(job, part, end, ready)
        for (_, partition), trouble in self._reader.take_troubled().items():
            if (job := self._jobs.get(partition)) is not None:
                with self._repair(job):
                    if not isinstance(trouble, PositionLost):
                        raise trouble
                    # Its oldest records were deleted after the oldest offset was asked for.
                    log.warning("restoring from the new beginning", partition=partition, why=str(trouble))
                    self._restart(job)

    @contextlib.contextmanager
    def _repair(self, job: RestoreJob) -> Iterator[None]:
        """Surround a step of a restore: a damaged store is wiped and restored from the start."""
        try:
            yield
        except PartitionHeld as error:
            self._hold(job, error)
        except StateDamaged as error:
            partition = job.task.partition
            is_behind = isinstance(error, StateBehind)
            if job.damages == _DAMAGES_MAX and not is_behind:
                why = (
                    f"restoring {self._shown} partition {partition}: the store was damaged again and again, at last "
                    f"by: {error}. Is the disk of state_dir, or the memory, failing?"
                )
                self._hold(job, PartitionHeld("state_damaged", why))
                return
            log.error("local state damaged; restoring it anew", topic=self._shown, partition=partition, why=str(error))
            self.remove(partition)
            for store in job.task.stores:
                store.heal(error)
            job.damages += not is_behind
            self._restart(job)

    def _restart(self, job: RestoreJob) -> None:
        """Restore a partition from the start."""
        self.remove(job.task.partition)
        self.add(job.task)
        self._jobs[job.task.partition].damages = job.damages

    def _hold(self, job: RestoreJob, error: PartitionHeld) -> None:
        """Give a partition up; its owner decides when to try again."""
        self.remove(job.task.partition)
        self.on_held(job.task, error)

    def _apply_batch(
        self, job: RestoreJob, part: LogReplay, messages: list[Message], ready: list[tuple[Task, int]]
    ) -> None:
        """Apply a batch of one log, which may complete it."""
        part.take_messages(messages)
        job.read += len(messages)
        job.sow_read += len(messages) * (part.topic == self._sow)
        if self._progress is not None:
            self._progress.took(len(messages))
        self._stalls.moved(part.partition)
        now_s = time.monotonic()
        if now_s - job.logged_s > _LOG_INTERVAL_S:
            job.logged_s = now_s
            log_restoring(part)
        # The topic of a table has other writers: while records come all the time, no end of the partition is reported.
        if part.position >= part.target and not part.is_complete and not self.comparison.awaits_end(job, part):
            self._finish(job, part, part.position, ready)

    def _finish(self, job: RestoreJob, part: LogReplay, end: int, ready: list[tuple[Task, int]]) -> None:
        """Complete a log; with the last one the task is ready."""
        part.finish(end)
        self.comparison.forget(part.partition)
        self._reader.remove(part.topic, part.partition)
        self._stalls.moved(part.partition)
        if not part.is_complete:
            self._reader.add([Position(part.topic, part.partition, part.position)])  # It begins again.
        if job.next_log is None:
            self._complete(job, ready)

    def _complete(self, job: RestoreJob, ready: list[tuple[Task, int]]) -> None:
        """Mark the task as ready, unless its input position contradicts the group's offset."""
        task, start = job.task, job.start
        assert start is not None
        beginning = self._beginning(job, start)
        if start.is_new:
            task.lacks_offset = beginning.metadata is not None  # Else it is a new group.
        redelivered = Redelivered.from_metadata(beginning.offset, beginning.metadata)
        if redelivered is not None and start.redelivered is None:
            # The end of the SOW topic must be read again, to find the redelivered records.
            self._restart(job)
            self._jobs[task.partition].beginning = beginning
            return
        if self.comparison.begin(job, start, beginning.offset):
            return
        self.remove(task.partition)
        task.missed = job.missed(beginning.offset)
        self.comparison.note(task, start, beginning.offset)
        job.log_restored(self._shown)
        task.redelivered, task.input_id = start.redelivered, self._positions.topic_id if self._decides else ""
        task.committed_note = CommitMetadata.read(beginning.metadata).note
        ready.append((task, beginning.offset))

    def _beginning(self, job: RestoreJob, start: Start) -> Beginning:
        """Decide where the input begins; errors as `InputPositions.decide`."""
        if not self._decides:
            return Beginning(start.offset, start.metadata)
        # For a copy any record counts, also a deleted one; otherwise deleted records cannot be merged twice.
        has_records = job.sow_read > 0
        if not self._is_copy:
            has_records = job.sow_read + job.opened_at > 0 and bool(job.task.state.scan(None, 1))
        return self._positions.decide(job.task, start, has_records=has_records)

    def _show(self) -> None:
        """Show the number of remaining offsets."""
        if self._progress is not None:
            self._progress.left(sum(self.remaining.values()))

    def _watch(self) -> None:
        """Log stalled restores, and hold those that have made no progress for too long."""
        for partition, job in list(self._jobs.items()):
            is_in_balance = self._ranges.is_in_balance(partition)
            awaited = self._awaited(job)
            if error := self._stalls.check(partition, awaited, job.next_log, is_in_balance=is_in_balance):
                self._hold(job, error)
        self._stalls.turn()

    def _awaited(self, job: RestoreJob) -> str:
        """Describe for people the event that a partition waits for."""
        if job.task.task_state is TaskState.CREATED:
            return job.why_closed or "its turn to be opened"
        if (part := job.next_log) is not None:
            return f"records of {part.topic} partition {part.partition} at offset {part.position} of {part.target}"
        return self._ranges.unanswered(job.task.partition) or "its turn"
