"""Brings back partitions, their states and marks, from Kafka: on a consumer of its own, a batch at a time."""

from __future__ import annotations

import time
from functools import partial
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
from processor.hosting.commit_metadata import Note
from processor.kafka import errors as kafka_errors
from processor.kafka.message import by_log
from processor.kafka.readers.log_reader import LogReader, Position, Read
from processor.runtime.recovery.input_position import Beginning, Found, InputPositions
from processor.runtime.recovery.job import RestoreJob, instead, stop_for_hold, tell_restoring
from processor.runtime.recovery.log_replay import MarkLog, RestoredLog, SowLog
from processor.runtime.recovery.redelivered import Tail
from processor.runtime.recovery.stall import Stalls
from processor.runtime.recovery.target import Aim, Aims
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState
from processor.store.marks import POSITION_NAME
from processor.wire.input_position import InputPosition

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.runtime.recovery.progress import RestoreProgress
    from processor.runtime.recovery.target import Start
    from processor.store.layered_state import TransactionalState

    Open = Callable[[int], TransactionalState]

log = structlog.stdlib.get_logger("sowstream.restore")

_BATCH_RECORDS_MAX = 2_000  # What a processor's cache holds: five times as many take half as long again.
_TURN_S = 0.05  # How long ready partitions may wait for those that are not, besides a batch's own time.
_OPEN_S = 0.5  # How long partitions are opened in one turn; those that are ready wait for as long.
_LOCK_PATIENCE_S = 60.0
_LOG_INTERVAL_S = 2.0
_DAMAGES_MAX = 3


class Restorer:
    """Restores partitions while the ones that are ready go on. One thread only.

    A partition is ready when the end-of-partition events of its SOW topic, and of its mark topic if it has marks, reach
    the true ends, taken after the group's committed input offset was known: the offset, the records and the marks it
    stands for were committed in one transaction. One that cannot be restored is given up, and holds up no other.
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
        is_copy: bool = False,
        positions: InputPositions | None = None,
        on_held: Callable[[Task, PartitionHeld], None] = stop_for_hold,
    ) -> None:
        """Make a restorer.

        Args:
            reader: a reader that knows the input's consumer group, and bears trouble; owned by the restorer.
            admin: answers where the input goes on, and where the topics begin and end.
            source: the input topic.
            sow: the topic to restore states from; None if the processor has none.
            mark: the topic to restore marks from; None if the processor has none.
            open_state: opens the state of a partition.
            stall_timeout_s: how long a restore may bring nothing while Kafka answers other questions.
            progress: is told of all that is done.
            is_copy: whether the states are made of another family's SOW topic: of an offset that is gone nobody could
                tell whether it was one of the same records.
            positions: decides where the input begins; None: the group alone does.
            on_held: takes a partition that cannot be restored, with why; the restorer has forgotten it by then. None
                given: it raises `Stop`.
        """
        self._reader = reader
        self._source = source
        self._sow = sow
        self._shown = sow or source  # Named in messages about a partition.
        self._mark = mark
        self._open_state = open_state
        self._progress = progress
        self._is_copy = is_copy
        self._decides = positions is not None
        self._positions = positions or InputPositions("", source.rpartition(".")[0], source)
        if positions is None or mark is None:
            self._positions.topic_id = "not asked: nothing is compared with it"
        self.on_held = on_held
        """Takes a partition that cannot be restored."""
        self._aims = Aims(admin, self._positions, group=reader.group, source=source, sow=sow, mark=mark)
        self._stalls = Stalls(admin, reader, self._shown, stall_timeout_s)
        self._jobs: dict[int, RestoreJob] = {}

    def add(self, task: Task) -> None:
        """Begin to restore a task's partition."""
        now_s = time.monotonic()
        self._jobs[task.partition] = RestoreJob(task, now_s, logged_s=now_s)
        self._stalls.moved(task.partition)
        if task.task_state is not TaskState.CREATED:
            self._aims.add(task.partition)

    def remove(self, partition: int) -> None:
        """Stop restoring a partition, if it was being restored."""
        job = self._jobs.pop(partition, None)
        self._aims.remove(partition)
        self._stalls.forget(partition)
        for part in job.logs.values() if job is not None else ():
            if not part.is_complete:
                self._reader.remove(part.topic, partition)

    @property
    def is_busy(self) -> bool:
        """Whether any partition is not ready."""
        return bool(self._jobs)

    @property
    def remaining(self) -> dict[int, int]:
        """Offsets still to go for each partition being restored."""
        return {
            partition: sum(max(0, part.target - part.position) for part in job.logs.values())
            for partition, job in self._jobs.items()
            if job.logs
        }

    @property
    def waits_for(self) -> dict[int, str]:
        """What each partition waits for that has come no further for some seconds, for people."""
        return {
            partition: self._awaited(job) for partition, job in self._jobs.items() if self._stalls.is_slow(partition)
        }

    def advance(self, timeout_s: float) -> list[tuple[Task, int]]:
        """Do one batch of the work; the tasks that are ready, each with its input offset.

        Raises:
            DiskUnusable: no state can be written.
            ConfigurationError: Kafka refuses.
        """
        ready: list[tuple[Task, int]] = []
        self._open()
        for number, aim in self._aims.turn().items():
            self._begin(self._jobs[number], aim, ready)
        until_s = time.monotonic() + _TURN_S
        while any(job.logs for job in self._jobs.values()):
            read = self._reader.read(_BATCH_RECORDS_MAX, timeout_s)
            self._apply(read, ready)
            if ready or len(read.messages) < _BATCH_RECORDS_MAX or time.monotonic() >= until_s:
                break
            timeout_s = 0.0
        else:
            if not ready and self._jobs:
                time.sleep(timeout_s)  # There is nothing to read: directories are locked, or answers are on their way.
        self._watch()
        self._show()
        return ready

    def close(self) -> None:
        """Close the connection; what is being restored stays as far as it came."""
        for partition in list(self._jobs):
            self._aims.remove(partition)
        self._jobs.clear()
        self._show()
        self._reader.close()

    def _open(self) -> None:
        """Open the states' directories; those that others still hold are tried again at the next turn."""
        until_s = time.monotonic() + _OPEN_S
        is_late = False
        for job in [job for job in self._jobs.values() if job.task.task_state is TaskState.CREATED]:
            if is_late:
                self._stalls.moved(job.task.partition)  # It waits for its turn, and has not stalled.
                continue
            self._try_step(job, partial(self._open_one, job))
            # Hundreds would take longer than a transaction of those that are ready may.
            is_late = time.monotonic() > until_s

    def _open_one(self, job: RestoreJob) -> None:
        partition = job.task.partition
        try:
            job.task.open(self._open_state(partition))
        except StateLocked as error:
            if time.monotonic() - job.began_s > _LOCK_PATIENCE_S:
                raise PartitionHeld("state_locked", str(error)) from error
            job.why_closed = str(error)
            self._stalls.moved(partition)  # Kafka has no part in it.
        except BrokerUnavailable as error:
            job.why_closed = str(error)
        except ConfigurationError as error:
            if not kafka_errors.is_unknown(error):
                raise
            job.why_closed = str(error)  # The topics were there at the start: a broker that has just started was asked.
        else:
            self._stalls.moved(partition)
            self._aims.add(partition)

    def _begin(self, job: RestoreJob, aim: Aim | PartitionHeld, ready: list[tuple[Task, int]]) -> None:
        """Start reading a partition's logs, if there are any; it is ready otherwise."""
        if isinstance(aim, PartitionHeld):
            self._hold(job, aim)
            return
        job.start = aim.start if job.instead is None else instead(aim.start, job.instead)
        self._stalls.moved(job.task.partition)
        logs = self._logs_of(job, aim)
        step = partial(self._follow, job, logs, aim) if logs else partial(self._complete, job, ready)
        self._try_step(job, step)

    def _follow(self, job: RestoreJob, logs: list[RestoredLog], aim: Aim) -> None:
        """Start reading a partition's logs, from where what is left of it ends."""
        assert self._aims.horizon_ms is not None
        for part in logs:
            if (why := part.distrust(self._aims.horizon_ms)) is not None:
                log.warning("local state wiped", topic=part.topic, partition=part.partition, why=why)
            if part.position < part.target:
                tell_restoring(part)
        # The reader tells the end of a partition also where there is nothing to read.
        positions = [Position(part.topic, part.partition, max(part.position, aim.oldest[part.topic])) for part in logs]
        job.logs = {part.topic: part for part in logs}
        self._reader.add(positions)

    def _logs_of(self, job: RestoreJob, aim: Aim) -> list[RestoredLog]:
        """What a partition is restored from, with where it ends."""
        task, start = job.task, job.start
        assert start is not None
        # Where a topic ends does not say whether it has records: all of them may have been rolled back.
        is_whole = self._is_copy and start.is_new
        logs: list[RestoredLog] = []
        if self._sow is not None:
            job.was_at = task.state.position
            logs.append(SowLog(self._sow, task.partition, task.state, start.tail, is_whole=is_whole))
        if self._mark is not None and task.marks is not None:
            logs.append(MarkLog(self._mark, task.partition, task.marks, start.tail))
        for part in logs:
            part.target = aim.ends[part.topic]
        return logs

    def _apply(self, read: Read, ready: list[tuple[Task, int]]) -> None:
        """Take over what came."""
        for (topic, partition), messages in by_log(read.messages).items():
            job = self._jobs.get(partition)
            if job is not None and topic in job.logs:
                self._try_step(job, partial(self._take, job, job.logs[topic], messages))
        for topic, partition, end in read.ends:
            job = self._jobs.get(partition)
            part = None if job is None else job.logs.get(topic)
            if job is not None and part is not None and not part.is_complete and end >= part.target:
                self._try_step(job, partial(self._finish, job, part, end, ready))
        for (_, partition), trouble in self._reader.take_troubled().items():
            if (job := self._jobs.get(partition)) is not None:
                self._try_step(job, partial(self._meet, job, trouble))

    def _meet(self, job: RestoreJob, trouble: PartitionHeld | Stop) -> None:
        """A log cannot be read on."""
        if not isinstance(trouble, PositionLost):
            raise trouble
        # Its oldest records have gone since we asked for the oldest.
        log.warning("restoring from the new beginning", partition=job.task.partition, why=str(trouble))
        self._again(job)

    def _try_step(self, job: RestoreJob, step: Callable[[], None]) -> None:
        """Do a step of a restore; a store that turns out damaged is wiped, and its restore begins anew."""
        try:
            step()
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
            job.task.state.heal(error)
            self.add(job.task)
            self._jobs[partition].damages = job.damages + (not is_behind)

    def _again(self, job: RestoreJob) -> None:
        """Begin a partition's restore anew."""
        self.remove(job.task.partition)
        self.add(job.task)
        self._jobs[job.task.partition].damages = job.damages

    def _hold(self, job: RestoreJob, error: PartitionHeld) -> None:
        """Give a partition up; it is asked again by those who have it."""
        self.remove(job.task.partition)
        self.on_held(job.task, error)

    def _take(self, job: RestoreJob, part: RestoredLog, messages: list[Message]) -> None:
        """Apply a batch of one log."""
        part.take_messages(messages)
        job.read += len(messages)
        job.sow_read += len(messages) * (part.topic == self._sow)
        job.sow_read += len(messages) * (part.topic == self._sow)
        if self._progress is not None:
            self._progress.took(len(messages))
        self._stalls.moved(part.partition)
        now_s = time.monotonic()
        if now_s - job.logged_s > _LOG_INTERVAL_S:
            job.logged_s = now_s
            tell_restoring(part)

    def _finish(self, job: RestoreJob, part: RestoredLog, end: int, ready: list[tuple[Task, int]]) -> None:
        """A log is complete; with the last one the task is ready."""
        part.finish(end)
        self._reader.remove(part.topic, part.partition)
        self._stalls.moved(part.partition)
        if all(other.is_complete for other in job.logs.values()):
            self._complete(job, ready)

    def _complete(self, job: RestoreJob, ready: list[tuple[Task, int]]) -> None:
        """Everything is restored: the task is ready, unless its position contradicts the group's offset."""
        task, start = job.task, job.start
        assert start is not None
        begin = self._beginning(job, start)
        if start.is_new:
            task.lacks_offset = begin.note is not None  # Else it is a new group.
        tail = Tail.noted(begin.offset, begin.note)
        if tail is not None and start.tail is None:
            # The end of the SOW topic is to be read with other eyes: some of its input comes again.
            self._again(job)
            self._jobs[task.partition].instead = begin
            return
        self.remove(task.partition)
        seconds = round(time.monotonic() - job.began_s, 3)
        rate = round(job.read / max(seconds, 0.001))
        log.info(
            "restored",
            topic=self._shown,
            partition=task.partition,
            read=job.sow_read,
            seconds=seconds,
            records_per_s=rate,
        )
        task.tail, task.noted = start.tail, Note.read(begin.note).noted
        ready.append((task, begin.offset))

    def _beginning(self, job: RestoreJob, start: Start) -> Beginning:
        """Where the input begins, as group and position say.

        Raises:
            PartitionHeld: they contradict each other, or say nothing.
        """
        if not self._decides:
            return Beginning(start.offset, start.note)
        task = job.task
        position = None if task.marks is None else InputPosition.read(task.marks.get(POSITION_NAME))
        # Of a copy any record counts, deleted ones too; else deletes have left nothing to be merged twice.
        is_any = job.sow_read > 0 if self._is_copy else job.sow_read + job.was_at > 0 and bool(task.state.scan(None, 1))
        committed = None if start.is_new else start.offset
        found = Found(committed, start.note, start.oldest, has_records=is_any)
        return self._positions.begin(task.partition, found, position)

    def _show(self) -> None:
        """Tell how much is left."""
        if self._progress is not None:
            self._progress.left(sum(self.remaining.values()))

    def _watch(self) -> None:
        """Tell what is waited for, and give up what has waited for too long."""
        for partition, job in list(self._jobs.items()):
            part = next((part for part in job.logs.values() if not part.is_complete), None)
            error = self._stalls.check(
                partition, self._awaited(job), part, is_in_balance=self._aims.is_in_balance(partition)
            )
            if error is not None:
                self._hold(job, error)
        self._stalls.turn()

    def _awaited(self, job: RestoreJob) -> str:
        """What a partition waits for, for people."""
        if job.task.task_state is TaskState.CREATED:
            return job.why_closed or "its turn to be opened"
        part = next((part for part in job.logs.values() if not part.is_complete), None)
        if part is not None:
            return f"records of {part.topic} partition {part.partition} at offset {part.position} of {part.target}"
        return self._aims.unanswered(job.task.partition) or "its turn"
