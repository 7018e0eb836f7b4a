"""Brings back partitions, their states and marks, from Kafka: on a consumer of its own, a batch at a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    PartitionHeld,
    RestoreStalled,
    StateDamaged,
    StateLocked,
    Stop,
)
from processor.kafka import failure
from processor.kafka.log_reader import LogReader, Position, Read
from processor.kafka.message import by_log
from processor.runtime.input_position import Beginning, Found, InputPosition, InputPositions
from processor.runtime.note import Note
from processor.runtime.restored_log import MarkLog, RestoredLog, SowLog
from processor.runtime.tail import Tail
from processor.runtime.task import Task, TaskState
from processor.state.marks import POSITION_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.kafka.admin import Admin
    from processor.kafka.message import Message
    from processor.runtime.restore_progress import RestoreProgress
    from processor.state.transactional import TransactionalState

    Open = Callable[[int], TransactionalState]

log = structlog.stdlib.get_logger("sowstream.restore")

_BATCH_RECORDS_MAX = 2_000  # What a processor's cache holds: five times as many take half as long again.
_TURN_S = 0.05  # How long ready partitions may wait for those that are not, besides a batch's own time.
_OPEN_S = 0.5  # How long partitions are opened in one turn; those that are ready wait for as long.
_ASK_TIMEOUT_S = 0.5  # One try of a question to Kafka; processing of ready partitions waits for as long.
_LOCK_PATIENCE_S = 60.0
_LOG_INTERVAL_S = 2.0
_DAMAGES_MAX = 3


@dataclass(slots=True, eq=False)
class _Job:
    """One partition on its way back."""

    task: Task
    began_s: float
    found: Found | None = None  # What the group says of the input; asked for before the targets, see `_aim`.
    tail: Tail | None = None  # Found with it.
    logs: dict[str, RestoredLog] = field(default_factory=dict)  # By topic; of none if there is nothing to restore.
    is_aimed: bool = False  # Whether the logs and their targets are known.
    read: int = 0
    sow_read: int = 0
    damages: int = 0  # How often its store was wiped on the way.
    moved_s: float = field(default=0.0)
    logged_s: float = field(default=0.0)


class Restorer:
    """Restores partitions while the ones that are ready go on. One thread only.

    A partition is ready when the end-of-partition events of its SOW topic, and of its mark topic if it has marks, reach
    the true ends, taken after the group's committed input offset was known: the offset, the records and the marks it
    stands for were committed in one transaction.
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
    ) -> None:
        """Make a restorer.

        Args:
            reader: a reader that knows the input's consumer group; owned by the restorer.
            admin: tells where the topics end.
            source: the input topic.
            sow: the topic to restore states from; None if the processor has none.
            mark: the topic to restore marks from; None if the processor has none.
            open_state: opens the state of a partition.
            stall_timeout_s: how long a restore may bring nothing.
            progress: is told of all that is done.
            is_copy: whether the states are made of another family's SOW topic: of an offset that is gone nobody could
                tell whether it was one of the same records.
            positions: decides where the input begins; None: the group alone does.
        """
        self._reader = reader
        self._admin = admin
        self._source = source
        self._sow = sow
        self._shown = sow or source  # Named in messages about a partition.
        self._mark = mark
        self._open_state = open_state
        self._stall_timeout_s = stall_timeout_s
        self._progress = progress
        self._is_copy = is_copy
        self._decides = positions is not None
        self._positions = positions or InputPositions("", source.rpartition(".")[0], source)
        self._jobs: dict[int, _Job] = {}
        self._horizon_ms: float | None = None
        self.on_held: Callable[[Task, PartitionHeld], None]

    def add(self, task: Task) -> None:
        """Begin to restore a task's partition."""
        now_s = time.monotonic()
        self._jobs[task.partition] = _Job(task, now_s, moved_s=now_s, logged_s=now_s)

    def remove(self, partition: int) -> None:
        """Stop restoring a partition, if it was being restored."""
        job = self._jobs.pop(partition, None)
        for log_read in job.logs.values() if job is not None else ():
            if not log_read.is_complete:
                self._reader.remove(log_read.topic, partition)

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

    def advance(self, timeout_s: float) -> list[tuple[Task, int]]:
        """Do one batch of the work; the tasks that are ready, each with its input offset.

        Raises:
            RestoreStalled: nothing came for too long.
            Stop: a partition cannot be restored.
        """
        waiting = [job for job in self._jobs.values() if not job.is_aimed]
        ready: list[tuple[Task, int]] = []
        if waiting:
            self._aim(waiting, ready)
        if not any(job.logs for job in self._jobs.values()):
            self._watch(time.monotonic())
            if not ready:
                time.sleep(timeout_s)  # There is nothing to read: the directories are locked, or Kafka is silent.
            return ready
        until_s = time.monotonic() + _TURN_S
        while True:
            read = self._reader.read(_BATCH_RECORDS_MAX, timeout_s)
            self._apply(read, ready)
            if ready or len(read.messages) < _BATCH_RECORDS_MAX or time.monotonic() >= until_s:
                break
            timeout_s = 0.0
        self._watch(time.monotonic())
        self._show()
        return ready

    def _apply(self, read: Read, ready: list[tuple[Task, int]]) -> None:
        """Take over what came."""
        now_s = time.monotonic()
        for (topic, partition), messages in by_log(read.messages).items():
            job = self._jobs.get(partition)
            if job is not None and topic in job.logs:
                self._healing(job, partial(self._take, job, job.logs[topic], messages, now_s))
        for topic, partition, end in read.ends:
            job = self._jobs.get(partition)
            part = None if job is None else job.logs.get(topic)
            if job is not None and part is not None and not part.is_complete and end >= part.target:
                self._healing(job, partial(self._finish, job, part, end, now_s, ready))

    def close(self) -> None:
        """Close the connection; what is being restored stays as far as it came."""
        self._jobs.clear()
        self._show()
        self._reader.close()

    def _aim(self, waiting: Iterable[_Job], ready: list[tuple[Task, int]]) -> None:
        """Find out from where and to where each partition is to be restored, and start reading."""
        aimed: list[_Job] = []
        until_s = time.monotonic() + _OPEN_S
        try:
            for job in waiting:
                if aimed and time.monotonic() > until_s:
                    break  # Hundreds would take longer than a transaction of those that are ready may.
                if job.task.task_state is TaskState.CREATED and not self._open(job):
                    continue
                if self._decides and self._mark is not None:
                    self._positions.ask(self._admin, _ASK_TIMEOUT_S * 4)
                if job.found is None:
                    try:
                        self._begin(job)
                    except PartitionHeld as error:
                        self.remove(job.task.partition)
                        self.on_held(job.task, error)
                        continue
                aimed.append(job)
            logs_of = [(job, self._logs_of(job)) for job in aimed]
            logs = [part for _, parts in logs_of for part in parts]
            # librdkafka takes half a second to find a beginning by itself.
            oldest = {part: self._reader.bounds(part.topic, part.partition, _ASK_TIMEOUT_S)[0] for part in logs}
            # Only now, when the input offsets are settled: see the class.
            self._set_targets(logs)
            horizon_ms = self._delete_retention_ms()
        except (TimeoutError, BrokerUnavailable):
            return  # Asked again at the next turn; `_watch` knows for how long.
        except ConfigurationError as error:
            if not failure.is_unknown(error):
                raise
            return  # The topics were there at the start: a broker that has just started was asked.
        for job, parts in logs_of:
            positions = [Position(part.topic, part.partition, oldest[part]) for part in parts]
            self._healing(job, partial(self._follow, job, parts, positions, horizon_ms))
        now_s = time.monotonic()
        for job, parts in logs_of:
            if not parts:
                self._complete(job, now_s, ready)
        if aimed:
            for job in waiting:
                job.moved_s = now_s  # Whoever waits for its turn has not stalled.

    def _follow(self, job: _Job, logs: list[RestoredLog], oldest: list[Position], horizon_ms: float) -> None:
        """Start reading a partition's logs, from where what is left of it ends."""
        for part in logs:
            if (why := part.distrust(horizon_ms)) is not None:
                log.warning("local state wiped", topic=part.topic, partition=part.partition, why=why)
            if part.position < part.target:
                _tell("restoring", part)
        job.logs, job.is_aimed = {part.topic: part for part in logs}, True
        # The reader tells the end of a partition also where there is nothing to read.
        self._reader.add(
            [first._replace(offset=max(part.position, first.offset)) for part, first in zip(logs, oldest, strict=True)]
        )

    def _logs_of(self, job: _Job) -> list[RestoredLog]:
        """What a partition is restored from."""
        task, tail = job.task, job.tail
        # Where a topic ends does not say whether it has records: all of them may have been rolled back.
        is_whole = self._is_copy and job.found is not None and job.found.committed is None
        logs: list[RestoredLog] = []
        if self._sow is not None:
            logs.append(SowLog(self._sow, task.partition, task.state, tail, is_whole=is_whole))
        if self._mark is not None and task.marks is not None:
            logs.append(MarkLog(self._mark, task.partition, task.marks, tail))
        return logs

    def _set_targets(self, logs: Iterable[RestoredLog]) -> None:
        """Ask for the true ends, of all partitions of a topic at once."""
        by_topic: dict[str, list[RestoredLog]] = {}
        for part in logs:
            by_topic.setdefault(part.topic, []).append(part)
        for topic, parts in by_topic.items():
            ends = self._admin.end_offsets(topic, [part.partition for part in parts], _ASK_TIMEOUT_S * 4)
            for part in parts:
                part.target = ends[part.partition]

    def _open(self, job: _Job) -> bool:
        """Open the state's directory; False while its last user still holds it."""
        try:
            job.task.open(self._open_state(job.task.partition))
        except StateLocked as error:
            if time.monotonic() - job.began_s > _LOCK_PATIENCE_S:
                raise Stop(str(error)) from error
            return False
        return True

    def _healing(self, job: _Job, step: Callable[[], None]) -> None:
        """Do a step of a restore; a store that turns out damaged is wiped, and its restore begins anew."""
        try:
            step()
        except StateDamaged as error:
            partition = job.task.partition
            if job.damages == _DAMAGES_MAX:
                raise Stop(
                    f"restoring {self._shown} partition {partition}: the store was damaged again and again, at last "
                    f"by: {error}. Is the disk of state_dir, or the memory, failing?"
                ) from error
            log.error("local state damaged; restoring it anew", topic=self._shown, partition=partition, why=str(error))
            self.remove(partition)
            job.task.state.wipe()
            self.add(job.task)
            self._jobs[partition].damages = job.damages + 1

    def _begin(self, job: _Job) -> None:
        """Ask what the group says of the input."""
        partition = job.task.partition
        committed, text = self._reader.committed_with_note(self._source, partition, _ASK_TIMEOUT_S)
        low, _ = self._reader.bounds(self._source, partition, _ASK_TIMEOUT_S)
        if committed is not None:
            self._positions.refuse_gone(partition, committed, low)  # Now: there may be much to restore.
            job.tail = Tail.noted(committed, text)
        job.found = Found(committed, text, low, has_records=False)

    def _delete_retention_ms(self) -> float:
        if self._sow is None:
            return math.inf
        if self._horizon_ms is None:
            self._horizon_ms = self._admin.delete_retention_ms(self._sow)
        return self._horizon_ms

    def _take(self, job: _Job, part: RestoredLog, messages: list[Message], now_s: float) -> None:
        """Apply a batch of one log."""
        part.take_messages(messages)
        job.read += len(messages)
        job.sow_read += len(messages) * (part.topic == self._sow)
        if self._progress is not None:
            self._progress.took(len(messages))
        job.moved_s = now_s
        if now_s - job.logged_s > _LOG_INTERVAL_S:
            job.logged_s = now_s
            _tell("restoring", part)

    def _finish(self, job: _Job, part: RestoredLog, end: int, now_s: float, ready: list[tuple[Task, int]]) -> None:
        """A log is complete; with the last one the task is ready."""
        part.finish(end)
        self._reader.remove(part.topic, part.partition)
        job.moved_s = now_s
        if all(other.is_complete for other in job.logs.values()):
            self._complete(job, now_s, ready)

    def _complete(self, job: _Job, now_s: float, ready: list[tuple[Task, int]]) -> None:
        """Everything is restored: the task is ready, unless where its input begins says otherwise."""
        task, found = job.task, job.found
        assert found is not None
        self.remove(task.partition)
        try:
            begin = self._decide(job, found)
        except PartitionHeld as error:
            self.on_held(task, error)
            return
        if found.committed is None:
            task.lacks_offset = begin.note is not None  # Else it is a new group.
        tail = Tail.noted(begin.offset, begin.note)
        if tail is not None and job.tail is None:
            # The end of the SOW topic is to be read with other eyes: some of its input comes again.
            self.add(task)
            again = self._jobs[task.partition]
            again.found, again.tail = Found(begin.offset, begin.note, found.oldest, has_records=False), tail
            return
        seconds = round(now_s - job.began_s, 3)
        rate = round(job.read / max(seconds, 0.001))
        log.info(
            "restored", topic=self._shown, partition=task.partition, read=job.read, seconds=seconds, records_per_s=rate
        )
        task.tail, task.noted = job.tail, Note.read(begin.note).noted
        ready.append((task, begin.offset))

    def _decide(self, job: _Job, found: Found) -> Beginning:
        """Where the input of a restored task begins.

        Raises:
            PartitionHeld: what the group says contradicts what the outputs say, or neither says anything.
        """
        if not self._decides:
            return Beginning(found.oldest if found.committed is None else found.committed, found.note)
        task = job.task
        position = None if task.marks is None else InputPosition.read(task.marks.get(POSITION_NAME))
        # Of a copy any record counts, deleted ones too; else deletes have left nothing to be merged twice.
        has_records = job.sow_read > 0 if self._is_copy else bool(task.state.scan(None, 1))
        return self._positions.begin(task.partition, found._replace(has_records=has_records), position)

    def _show(self) -> None:
        """Tell how much is left."""
        if self._progress is not None:
            self._progress.left(sum(self.remaining.values()))

    def _watch(self, now_s: float) -> None:
        """A restore that brings nothing for too long is an error, not a wait."""
        for partition, job in self._jobs.items():
            if now_s - job.moved_s <= self._stall_timeout_s:
                continue
            part = next((part for part in job.logs.values() if not part.is_complete), None)
            topic = self._shown if part is None else part.topic
            reached = "its beginning" if part is None else f"offset {part.position} of {part.target}"
            raise RestoreStalled(
                f"restoring {topic} partition {partition}: nothing for {self._stall_timeout_s:g} s at {reached}. "
                "A transaction of a dead worker may be open "
                "(transaction.timeout.ms ends it), or the brokers do not answer; `sowstream doctor` looks closer"
            )


def _tell(what: str, part: RestoredLog) -> None:
    log.info(what, topic=part.topic, partition=part.partition, position=part.position, end=part.target)
