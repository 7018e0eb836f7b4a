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
    Stop,
)
from processor.hosting.commit_metadata import CommitMetadata, Redelivered
from processor.kafka import errors as kafka_errors
from processor.kafka.clients.log_reader import LogReader, Position, ReadResult
from processor.kafka.message import by_log
from processor.runtime.recovery.input_position import Beginning, GroupOffset, InputPositions
from processor.runtime.recovery.job import (
    RestoreJob,
    Stalls,
    log_restoring,
    moved_start,
    open_stores,
    present_keys,
    stop_for_hold,
)
from processor.runtime.recovery.log_replay import LogReplay, replays
from processor.runtime.recovery.restore_range import RestoreRange, RestoreRanges, place_question
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState
from processor.store.marks import FENCE_NAME, POSITION_NAME
from processor.wire.partition_marks import InputPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.runtime.recovery.job import RestoreProgress
    from processor.runtime.recovery.restore_range import Start
    from processor.store.layered_state import LayeredState

    Open = Callable[[int], LayeredState]

log = structlog.stdlib.get_logger("sowstream.restore")

_BATCH_RECORDS_MAX = 2_000  # Fits into a CPU's cache: each record of a batch five times as large takes 50 % longer.
_TURN_S = 0.05  # Longest wait of ready partitions for those being restored, apart from the last batch.
_OPEN_S = 0.5  # Longest time to open partitions in one turn; ready partitions wait meanwhile.
_LOCK_PATIENCE_S = 60.0
_LOG_INTERVAL_S = 2.0
_DAMAGES_MAX = 3
_LATE_MIN_MS = 600_000  # A healthy task reads up to a second late, and more during a slow commit: no reason to restore.


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
        on_held: Callable[[Task, PartitionHeld], None] = stop_for_hold,
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
            on_held: called with a partition that was given up, and the reason. The default raises `Stop`.
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
        # With a table the plug-in compares with it.
        self._compares = is_copy and sow is not None and open_table is None
        self._decides = positions is not None
        self._positions = positions or InputPositions("", source.rpartition(".")[0], source)
        if positions is None or mark is None:
            self._positions.topic_id = "not asked: nothing is compared with it"
        self.on_held = on_held
        """Called with a partition that cannot be restored, and the reason."""
        self._ranges = RestoreRanges(
            admin,
            self._positions,
            group=reader.group,
            source=source,
            sow=sow,
            mark=mark,
            table=open_table is not None,
            is_copy=self._compares,
        )
        self._ask_present = place_question(admin, source, "end")
        self._stalls = Stalls(admin, reader, self._shown, stall_timeout_s)
        self._jobs: dict[int, RestoreJob] = {}

    def add(self, task: Task) -> None:
        """Begin to restore a task's partition."""
        now_s = time.monotonic()
        self._jobs[task.partition] = RestoreJob(task, now_s, logged_s=now_s)
        self._stalls.moved(task.partition)
        if task.task_state is not TaskState.CREATED:
            self._ranges.add(task.partition)

    def remove(self, partition: int) -> None:
        """Stop restoring a partition, if it was being restored."""
        job = self._jobs.pop(partition, None)
        self._ranges.remove(partition)
        self._ask_present.forget(partition)
        self._stalls.forget(partition)
        for part in job.logs.values() if job is not None else ():
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

    @property
    def waits_for(self) -> dict[int, str]:
        """Describe for people the wait of each partition without progress for some seconds."""
        return {
            partition: self._awaited(job) for partition, job in self._jobs.items() if self._stalls.is_slow(partition)
        }

    def lacks_deletes(self, task: Task) -> bool:
        """Return whether a running task reads a copy's input so late that deletes may be gone from it.

        It is to be restored again: its state is then compared with the keys of the input.
        """
        if not self._compares:
            return False
        now_ms = time.time() * 1000
        return now_ms - task.stream_time_ms > self._late_ms and now_ms > task.compare_after_ms

    @property
    def _late_ms(self) -> float:
        """The time after which a running task reads an input so late that deletes may be gone from it."""
        return max(self._ranges.horizons_ms.get(self._source, math.inf), _LATE_MIN_MS)

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
        self._compare_next(ready)
        self._read_to_present(ready)
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
        logs = self._logs_of(job, outcome)
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
        # The reader reports the end of a partition also if there is nothing to read.
        positions = [
            Position(part.topic, part.partition, max(part.position, restore_range.oldest[part.topic])) for part in logs
        ]
        job.logs = {part.topic: part for part in logs}
        self._reader.add(positions)

    def _logs_of(self, job: RestoreJob, restore_range: RestoreRange) -> list[LogReplay]:
        """Create the logs from which a partition is restored, each with its end."""
        assert job.start is not None
        if self._sow is not None:
            job.opened_at = job.task.state.position
        # The end of a topic does not show whether it has records: all of them may have been rolled back.
        is_whole = self._is_copy and job.start.is_new
        return replays(
            job.task, restore_range, job.start.redelivered, (self._sow, self._mark, self._source), is_whole=is_whole
        )

    def _apply(self, read: ReadResult, ready: list[tuple[Task, int]]) -> None:
        """Apply the messages, and complete the logs that have ended."""
        for (topic, partition), messages in by_log(read.messages).items():
            job = self._jobs.get(partition)
            if job is not None and topic in job.logs:
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
                    self._handle_trouble(job, trouble)

    def _handle_trouble(self, job: RestoreJob, trouble: PartitionHeld | Stop) -> None:
        """Restart a restore whose position is gone; raise any other error of its log."""
        if not isinstance(trouble, PositionLost):
            raise trouble
        # Its oldest records were deleted after the oldest offset was asked for.
        log.warning("restoring from the new beginning", partition=job.task.partition, why=str(trouble))
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
            self.add(job.task)
            self._jobs[partition].damages = job.damages + (not is_behind)

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
        if part.position >= part.target and not part.is_complete:
            if part is job.present and not job.present.has_present_end:
                self._ask_present.want(part.partition)
                return
            self._finish(job, part, part.position, ready)

    def _finish(self, job: RestoreJob, part: LogReplay, end: int, ready: list[tuple[Task, int]]) -> None:
        """Complete a log; with the last one the task is ready."""
        part.finish(end)
        self._ask_present.forget(part.partition)
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
        is_due = job.present is None and start.lacks_deletes(beginning.offset)
        if is_due and (present := present_keys(task, self._source, start)) is not None:
            if self._compared is not None:
                job.is_ready_to_compare = True
                return
            log.info("comparing with the input", topic=self._source, partition=task.partition, end=start.end)
            job.present = job.logs[self._source] = present
            self._reader.add([Position(self._source, task.partition, start.oldest)])
            return
        self.remove(task.partition)
        task.missed = job.missed(beginning.offset)
        self._note_comparison(task, start, beginning.offset)
        job.log_restored(self._shown)
        task.redelivered, task.input_id = start.redelivered, self._positions.topic_id if self._decides else ""
        task.committed_note = CommitMetadata.read(beginning.metadata).note
        ready.append((task, beginning.offset))

    def _note_comparison(self, task: Task, start: Start, offset: int) -> None:
        """Note the time for which a task that begins now needs no comparison with its input."""
        # One has found all deletes that had gone by now; without one the next record is a young one.
        pause_ms = self._late_ms if start.lacks_deletes(offset) else _LATE_MIN_MS
        task.compare_after_ms = max(task.compare_after_ms, time.time() * 1000 + pause_ms)

    @property
    def _compared(self) -> RestoreJob | None:
        """The partition that is compared with its input: one at a time, as the keys of the input are in memory."""
        return next((job for job in self._jobs.values() if job.present is not None), None)

    def _compare_next(self, ready: list[tuple[Task, int]]) -> None:
        """Begin the next of the comparisons that wait, if none is under way; one without progress goes behind them."""
        waiting = [job for job in self._jobs.values() if job.is_ready_to_compare]
        for job in waiting:
            self._stalls.moved(job.task.partition)  # It waits for its turn, which is no stall.
        compared = self._compared
        if waiting and compared is not None and self._stalls.is_slow(compared.task.partition):
            partition = compared.task.partition
            self._reader.remove(self._source, partition)
            self._ask_present.forget(partition)
            del compared.logs[self._source], self._jobs[partition]
            compared.present, compared.is_ready_to_compare = None, True
            self._jobs[partition] = compared
        if waiting and self._compared is None:
            waiting[0].is_ready_to_compare = False
            with self._repair(waiting[0]):
                self._complete(waiting[0], ready)

    def _read_to_present(self, ready: list[tuple[Task, int]]) -> None:
        """Have comparisons that have come to the end of before go on to the end of now.

        Kafka may have removed records on the way, as their keys have newer ones behind the end of before.
        """
        for partition, end in self._ask_present.turn().items():
            job = self._jobs[partition]
            assert job.present is not None
            job.present.target, job.present.has_present_end = max(end, job.present.target), True
            if job.present.position >= job.present.target:
                with self._repair(job):
                    self._finish(job, job.present, job.present.position, ready)

    def _beginning(self, job: RestoreJob, start: Start) -> Beginning:
        """Decide where the input begins, by the group's offset and the input position.

        Raises:
            PartitionHeld: they contradict each other, or both are missing; or a fence is in its marks.
            DefinitionChanged: the records of its state are of other settings.
        """
        if not self._decides:
            return Beginning(start.offset, start.metadata)
        task = job.task
        if task.marks is not None:
            self._positions.refuse_fenced(task.partition, task.marks.get(FENCE_NAME))
        position = None if task.marks is None else InputPosition.read(task.marks.get(POSITION_NAME))
        if position is not None and task.state.scan(None, 1):
            self._positions.refuse_changed(position)
        # For a copy any record counts, also a deleted one; otherwise deleted records cannot be merged twice.
        if self._is_copy:
            has_records = job.sow_read > 0
        else:
            has_records = job.sow_read + job.opened_at > 0 and bool(task.state.scan(None, 1))
        committed = None if start.is_new else start.offset
        group = GroupOffset(committed, start.metadata, start.oldest, has_records=has_records)
        return self._positions.begin(task.partition, group, position)

    def _show(self) -> None:
        """Show the number of remaining offsets."""
        if self._progress is not None:
            self._progress.left(sum(self.remaining.values()))

    def _watch(self) -> None:
        """Log stalled restores, and hold those that have made no progress for too long."""
        for partition, job in list(self._jobs.items()):
            is_in_balance = self._ranges.is_in_balance(partition)
            error = self._stalls.check(partition, self._awaited(job), job.next_log, is_in_balance=is_in_balance)
            if error is not None:
                self._hold(job, error)
        self._stalls.turn()

    def _awaited(self, job: RestoreJob) -> str:
        """Describe for people the event that a partition waits for."""
        if job.task.task_state is TaskState.CREATED:
            return job.why_closed or "its turn to be opened"
        if (part := job.next_log) is not None:
            return f"records of {part.topic} partition {part.partition} at offset {part.position} of {part.target}"
        return self._ranges.unanswered(job.task.partition) or "its turn"
