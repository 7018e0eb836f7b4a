"""Brings back the state of partitions from the SOW topic, on a consumer of its own, a batch at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from processor.errors import BrokerUnavailable, ConfigurationError, RestoreStalled, StateDamaged, StateLocked, Stop
from processor.kafka.log_reader import LogReader, Position
from processor.kafka.message import Message, by_partition, records
from processor.record import Stored
from processor.runtime.sow_record import stored_from
from processor.runtime.task import Task, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.kafka.admin import Admin
    from processor.state.transactional import TransactionalState

    Open = Callable[[int], TransactionalState]

log = structlog.stdlib.get_logger("sowstream.restore")

_BATCH_RECORDS_MAX = 10_000
_ASK_TIMEOUT_S = 0.5  # One try of a question to Kafka; processing of ready partitions waits for as long.
_LOCK_PATIENCE_S = 60.0
_LOG_INTERVAL_S = 2.0
_DAMAGES_MAX = 3


@dataclass(slots=True, eq=False)
class _Job:
    """One partition on its way back."""

    task: Task
    began_s: float
    start_offset: int | None = None  # Where the input goes on; asked for before the target, see `_aim`.
    target: int | None = None  # The SOW offset at which the state is complete.
    read: int = 0
    damages: int = 0  # How often its store was wiped on the way.
    moved_s: float = field(default=0.0)
    logged_s: float = field(default=0.0)


class Restorer:
    """Restores partitions while the ones that are ready go on. One thread only.

    A partition is ready when the end-of-partition event reaches the SOW topic's true end, taken after the group's
    committed input offset was known: the offset and the records it stands for were committed in one transaction.
    """

    def __init__(
        self, *, reader: LogReader, admin: Admin, source: str, sow: str, open_state: Open, stall_timeout_s: float
    ) -> None:
        """Make a restorer.

        Args:
            reader: a reader that knows the input's consumer group; owned by the restorer.
            admin: tells the SOW topic's end.
            source: the input topic.
            sow: the topic to restore from.
            open_state: opens the state of a partition.
            stall_timeout_s: how long a restore may bring nothing.
        """
        self._reader = reader
        self._admin = admin
        self._source = source
        self._sow = sow
        self._open_state = open_state
        self._stall_timeout_s = stall_timeout_s
        self._jobs: dict[int, _Job] = {}
        self._horizon_ms: float | None = None

    def add(self, task: Task) -> None:
        """Begin to restore a task's partition."""
        now_s = time.monotonic()
        self._jobs[task.partition] = _Job(task, now_s, moved_s=now_s, logged_s=now_s)

    def remove(self, partition: int) -> None:
        """Stop restoring a partition, if it was being restored."""
        job = self._jobs.pop(partition, None)
        if job is not None and job.target is not None:
            self._reader.remove(self._sow, partition)

    @property
    def is_busy(self) -> bool:
        """Whether any partition is not ready."""
        return bool(self._jobs)

    @property
    def remaining(self) -> dict[int, int]:
        """Offsets still to go for each partition being restored."""
        return {
            partition: max(0, job.target - job.task.state.position)
            for partition, job in self._jobs.items()
            if job.target is not None
        }

    def advance(self, timeout_s: float) -> list[tuple[Task, int]]:
        """Do one batch of the work; the tasks that are ready, each with its input offset.

        Raises:
            RestoreStalled: nothing came for too long.
            Stop: a partition cannot be restored.
        """
        waiting = [job for job in self._jobs.values() if job.target is None]
        if waiting:
            self._aim(waiting)
        if all(job.target is None for job in self._jobs.values()):
            self._watch(time.monotonic())
            time.sleep(timeout_s)  # There is nothing to read: the directories are locked, or Kafka did not answer.
            return []
        read = self._reader.read(_BATCH_RECORDS_MAX, timeout_s)
        now_s = time.monotonic()
        for partition, messages in by_partition(read.messages).items():
            if (job := self._jobs.get(partition)) is not None:
                self._healing(job, partial(self._take, job, messages, now_s))
        ready: list[tuple[Task, int]] = []
        for end in read.ends:
            job = self._jobs.get(end.partition)
            if job is not None and job.target is not None and end.offset >= job.target:
                self._healing(job, partial(self._finish, job, end.offset, now_s, ready))
        self._watch(now_s)
        return ready

    def close(self) -> None:
        """Close the connection; what is being restored stays as far as it came."""
        self._jobs.clear()
        self._reader.close()

    def _aim(self, waiting: Iterable[_Job]) -> None:
        """Find out from where and to where each partition is to be restored, and start reading."""
        aimed = []
        try:
            for job in waiting:
                if job.task.task_state is TaskState.CREATED and not self._open(job):
                    continue
                if job.start_offset is None:
                    job.start_offset = self._start_offset(job.task.partition)
                aimed.append(job)
            # librdkafka takes half a second to find a beginning by itself.
            oldest = {job: self._reader.bounds(self._sow, job.task.partition, _ASK_TIMEOUT_S)[0] for job in aimed}
            # Only now, when the input offsets are settled: see the class.
            targets = self._admin.end_offsets(self._sow, [job.task.partition for job in aimed], _ASK_TIMEOUT_S * 4)
            horizon_ms = self._delete_retention_ms()
        except (TimeoutError, BrokerUnavailable):
            return  # Asked again at the next turn; `_watch` knows for how long.
        for job in aimed:
            partition, state = job.task.partition, job.task.state
            job.target = targets[partition]
            self._distrust(job, state, horizon_ms)
            if state.position < job.target:
                log.info("restoring", topic=self._sow, partition=partition, position=state.position, end=job.target)
            # The reader tells the end of a partition also where there is nothing to read.
            self._reader.add([Position(self._sow, partition, max(state.position, oldest[job]))])

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
                    f"restoring {self._sow} partition {partition}: the store was damaged again and again, at last by: "
                    f"{error}. Is the disk of state_dir full, or failing?"
                ) from error
            log.error("local state damaged; restoring it anew", topic=self._sow, partition=partition, why=str(error))
            self.remove(partition)
            job.task.state.wipe()
            self.add(job.task)
            self._jobs[partition].damages = job.damages + 1

    def _start_offset(self, partition: int) -> int:
        """Where the input goes on: the committed offset, or its beginning for a group that never committed."""
        committed = self._reader.committed(self._source, partition, _ASK_TIMEOUT_S)
        low, _ = self._reader.bounds(self._source, partition, _ASK_TIMEOUT_S)
        if committed is None:
            return low
        if committed < low:
            raise Stop(
                f"{self._source} partition {partition}: the group stands at offset {committed}, but the oldest record "
                f"kept is {low}. Records were deleted before they were processed; nothing is skipped silently: decide "
                "with Kafka's kafka-consumer-groups --reset-offsets, then start again"
            )
        return committed

    def _distrust(self, job: _Job, state: TransactionalState, horizon_ms: float) -> None:
        """Wipe a state that cannot be a cache of this SOW topic, or that is too old to have seen its deletes."""
        assert job.target is not None
        progress = state.store.progress()
        why = None
        if state.position > job.target:
            why = "it is ahead of the SOW topic, which must have been made anew"
        elif progress.position > 0 and time.time() * 1000 - progress.applied_at_ms > horizon_ms:
            why = "it is older than the topic's delete.retention.ms: deletes may be missing"
        if why is not None:
            log.warning("local state wiped", topic=self._sow, partition=job.task.partition, why=why)
            state.wipe()

    def _delete_retention_ms(self) -> float:
        if self._horizon_ms is None:
            settings = self._admin.topic_config([self._sow]).get(self._sow, {})
            self._horizon_ms = float(settings.get("delete.retention.ms", "86400000"))
        return self._horizon_ms

    def _take(self, job: _Job, messages: list[Message], now_s: float) -> None:
        """Apply a batch of one partition: the last record of each key counts."""
        changes: dict[bytes, Stored | None] = {}
        for record in records(messages):
            try:
                if record.key is None:
                    raise ValueError("it has no key")
                changes[record.key] = stored_from(record)
            except ValueError as error:
                raise ConfigurationError(
                    f"{self._sow} partition {job.task.partition} offset {record.offset} is not a SOW record: {error}. "
                    "Only workers may write to a SOW topic"
                ) from error
        # As of its last record, not of now: a delete behind it may be as old, and gone before we come back.
        job.task.state.restore(changes, record.offset + 1, record.timestamp_ms)
        job.read += len(messages)
        job.moved_s = now_s
        if now_s - job.logged_s > _LOG_INTERVAL_S:
            job.logged_s = now_s
            partition, position = job.task.partition, job.task.state.position
            log.info("restoring", topic=self._sow, partition=partition, position=position, end=job.target)

    def _finish(self, job: _Job, end: int, now_s: float, ready: list[tuple[Task, int]]) -> None:
        """The state is complete: the task is ready."""
        task = job.task
        task.state.restore({}, max(end, task.state.position), int(time.time() * 1000))
        self.remove(task.partition)
        seconds = round(now_s - job.began_s, 3)
        log.info("restored", topic=self._sow, partition=task.partition, read=job.read, seconds=seconds)
        assert job.start_offset is not None
        ready.append((task, job.start_offset))

    def _watch(self, now_s: float) -> None:
        """A restore that brings nothing for too long is an error, not a wait."""
        for job in self._jobs.values():
            if now_s - job.moved_s > self._stall_timeout_s:
                reached = "its beginning" if job.target is None else f"offset {job.task.state.position} of {job.target}"
                raise RestoreStalled(
                    f"restoring {self._sow} partition {job.task.partition}: nothing for {self._stall_timeout_s:g} s at "
                    f"{reached}. A transaction of a dead worker may be open "
                    "(transaction.timeout.ms ends it), or the brokers do not answer; `sowstream doctor` looks closer"
                )
