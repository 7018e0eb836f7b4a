"""The loop: poll → process → emit → commit → apply, for all partitions of one pipeline that this thread owns.

What happens in which order is the promise: records and deltas are produced, then committed together with the input
offsets in one Kafka transaction, and only then the state follows. Whatever goes wrong before the commit is forgotten
and done again; whatever goes wrong after it is read back from the SOW topic.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from processor.errors import (
    OutputTooLarge,
    PartitionHeld,
    ProcessorFailed,
    ProducerLost,
    SowstreamError,
    StateDamaged,
    TransactionAborted,
)
from processor.hosting.output_limits import OutputLimits
from processor.kafka import errors as kafka_errors
from processor.kafka.message import by_partition, records
from processor.runtime.back_off import back_off_s
from processor.runtime.commit_policy import CommitPolicy
from processor.runtime.holding.blame import blame
from processor.runtime.holding.held_tasks import HeldTasks
from processor.runtime.holding.rejection_log import RejectionLog
from processor.runtime.process.metrics import ThreadMetrics
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState
from processor.runtime.transactions import Transactions
from processor.runtime.watching.shown_tasks import ShownTasks
from processor.runtime.watching.topic_watch import refuse_grown
from processor.runtime.write_back import WriteBack, is_writing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec
    from processor.config import RuntimeConfig
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.message import Message
    from processor.kafka.readers.group_consumer import GroupConsumer
    from processor.record import Record
    from processor.runtime.clients import Clients

log = structlog.stdlib.get_logger("sowstream.thread")

_Done = TypeVar("_Done")

_IDLE_POLL_S = 0.02  # Also how late a punctuation may be: least interval of a conflated topic is 100 ms.
_CAREFUL_RECORDS = 200
_READ_MIN = 200  # Records, if they are there, that are read between two pieces of what the clock asked for.
_GAUGES_S = 0.5
_BATCHES_MAX = 2  # Of the bytes that may wait, in one transaction.


class StreamThread:
    """One pipeline's partitions on one thread, with one consumer and one transaction at a time."""

    def __init__(self, pipeline: Pipeline, clients: Clients, runtime: RuntimeConfig, codec: Codec) -> None:
        self._pipeline = pipeline
        self._runtime = runtime
        self._producer = clients.producer
        self._restorer = clients.restorer
        self._standbys = clients.standbys
        self._open_consumer = clients.consumer
        self._on_fenced = clients.fenced
        self._beat = clients.beat
        self._consumer: GroupConsumer
        self._tasks: dict[int, Task] = {}
        self._policy = CommitPolicy(interval_s=runtime.commit_interval_s, records_max=runtime.commit_records_max)
        self._metrics = ThreadMetrics(pipeline.name)
        self._held = HeldTasks(pipeline.name, self._metrics, clients.notices)
        self._restorer.on_held = self._held.hold
        self._shown = ShownTasks(pipeline, self._metrics, self._held)
        self._to_hold: dict[Task, PartitionHeld] = {}  # Of which the transaction at hand must first be rolled back.
        self._rejections = RejectionLog(pipeline.source)
        bytes_max = _BATCHES_MAX * runtime.batch_bytes_max
        self._transactions = Transactions(
            pipeline, clients.producer, self._metrics, clients.positions, bytes_max=bytes_max
        )
        self._gauged_s = time.monotonic()
        self._writes = WriteBack(runtime.write_back_bytes, runtime.write_back_interval_s, self._gauged_s)
        self._has_more = False  # A processor wants to be punctuated again at once.
        self._read_max = runtime.batch_records_max  # Records taken at the next turn, at most.
        self._limits = clients.limits or OutputLimits(pipeline, batch_bytes_max=runtime.batch_bytes_max)
        self._new_task = partial(Task, pipeline, codec=codec, rejections=self._rejections, limits=self._limits)
        self._failures = 0  # Transactions that failed in a row.
        self._broken = False  # An error is on its way out: what is in hand may be half done.

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop; then commit, let the partitions go and leave the group.

        Raises:
            Stop: it cannot go on.
        """
        self._producer.start()
        self._consumer = self._open_consumer(self)
        try:
            while not stop.is_set():
                self._step()
            self._try(self._commit)
        except BaseException as error:
            self._broken = True
            # Now: letting go may take long, as of states on a disk that takes nothing.
            log.error("stopping", pipeline=self._pipeline.name, error=str(error))
            with contextlib.suppress(SowstreamError):  # One error is on its way already.
                self._finish()
            raise
        finally:
            if self._broken:
                self._producer.close()  # First: nothing of ours is to arrive when others have the partitions.
            # Closing revokes: the tasks are closed in `on_revoked`.
            self._consumer.close()
            self._restorer.close()
            self._standbys.close()
            self._producer.close()
            for task in list(self._tasks.values()):
                task.let_go()

    def on_assigned(self, partitions: list[int]) -> None:
        """New partitions begin with their state; nothing slow happens here."""
        log.info("assigned", topic=self._pipeline.source, partitions=partitions)
        refuse_grown(self._pipeline, partitions)
        for partition in partitions:
            self._tasks[partition] = self._new_task(partition)
            self._restorer.add(self._tasks[partition])
        self._shown.rebalanced("assigned", self._tasks)

    def on_revoked(self, partitions: list[int]) -> None:
        """Partitions that leave: what was done for them is committed first."""
        if not self._broken:
            # Whoever gets them waits for us, and the group with it: what is not committed soon is rolled back.
            self._try(partial(self._commit, limit_s=self._runtime.session_timeout_s / 2))
        self._let_go(partitions)
        self._shown.rebalanced("revoked", self._tasks)

    def on_lost(self, partitions: list[int]) -> None:
        """Partitions that somebody else has already: what was done for them is forgotten."""
        if not self._broken:
            self._recover(TransactionAborted("partitions lost"))
        self._let_go(partitions)
        self._shown.rebalanced("lost", self._tasks)

    def _step(self) -> None:
        """One turn of the loop."""
        self._beat()
        began_s = time.monotonic()
        messages = self._poll()
        polled_s = time.monotonic()
        self._try(partial(self._work, messages, polled_s, waited_s=polled_s - began_s))
        if self._restorer.is_busy:
            for task, offset in self._restorer.advance(0.0 if messages or self._has_more else _IDLE_POLL_S):
                self._try(partial(self._begin, task, offset))
            self._shown.task_states(self._tasks, self._restorer.remaining)
        self._hold_unreadable()
        for task in self._held.due(self._tasks):
            self._restorer.add(task)
        self._standbys.turn(
            self._consumer.member_id, self._tasks, is_idle=not messages, is_restoring=self._restorer.is_busy
        )

    def _poll(self) -> list[Message]:
        """What is there at once; if nothing is, the first record that comes within the idle time."""
        # Where records are left of a turn before, so many fewer are read; one, for the group wants to be served.
        left = sum(len(task.host.left) for task in self._running() if not task.is_backlogged)
        most = max(1, self._read_max - left)
        messages = self._consumer.poll(most, 0.0)
        if not messages and not any(task.host.left for task in self._running()):
            self._try(self._finish)
            is_awaited = self._restorer.is_busy or self._has_more or is_writing(self._running())
            # Whole milliseconds are slept, rounded down: with one less the last part of one would be spent turning.
            rest_s = min(_IDLE_POLL_S, self._policy.rest_s(time.monotonic()) + 0.001)
            messages = self._consumer.poll(1, 0.0 if is_awaited else rest_s)
            if messages:
                messages += self._consumer.poll(most - 1, 0.0)
        return messages

    def _work(self, messages: list[Message], began_s: float, *, waited_s: float) -> None:
        """Process what came, do what is due, commit if it is time."""
        came, taken = by_partition(messages), 0
        for running in self._running():
            if not running.is_paused and (running.host.left or running.partition in came):
                taken += self._process(running, came.get(running.partition, []))
        has_left = any(task.host.left for task in self._running())
        for partition in self._consumer.ended:
            task = self._tasks.get(partition)
            if task is not None and task.task_state is TaskState.RUNNING and not task.is_paused and not task.host.left:
                task.reached_end()
        began_s += self._send()
        emitted, self._has_more = 0, False
        for task in self._running():
            was_paused = task.is_paused
            self._has_more |= self._healing(task, task.punctuate)
            emitted += self._transactions.send(task)
            if was_paused and not task.is_paused:
                self._consumer.begin(task.partition, task.next_offset)
        self._read_max = self._runtime.batch_records_max
        if self._has_more:  # Between two pieces no more is read than a piece makes: neither keeps the other waiting.
            self._read_max = min(self._read_max, max(emitted, _READ_MIN))
        now_s = time.monotonic()
        if taken or emitted or any(task.has_uncommitted for task in self._running()):
            self._policy.worked(now_s, now_s - began_s, taken, is_urgent=emitted > 0)
        is_drained = len(messages) < self._runtime.batch_records_max and not has_left
        if self._policy.due(now_s, drained=is_drained) or self._transactions.is_large:
            # Where no input waits, the records that come meanwhile are better off in one transaction after this one.
            self._commit(is_awaited=is_drained or not self._producer.is_transactional)
        self._write_back(now_s, taken)
        if now_s - self._gauged_s >= _GAUGES_S:
            self._gauged_s = now_s
            self._shown.gauges(self._tasks, self._restorer.remaining)
            self._rejections.flush()
            self._held.went_on(self._tasks.values())
        self._metrics.loop(waited_s, now_s - began_s)

    def _begin(self, task: Task, offset: int) -> None:
        self._healing(task, partial(task.start, offset))
        if task.tail is None and not self._producer.is_transactional:
            # Before anything is sent: from here on a crash leaves only what stands behind the SOW topic's end of now.
            self.commit_offsets({task.partition: offset})
        self._consumer.begin(task.partition, task.next_offset)
        self._held.began(task)

    def _process(self, task: Task, messages: list[Message]) -> int:
        """Give a task's processor what was left and what came, as far as its outputs may wait; how many it took."""
        came: Sequence[Record] = [*task.host.left, *records(messages)] if task.host.left else records(messages)
        count = len(came)
        if task.host.is_careful(came[0].offset):
            # Some of these may fail, and what is done with them by then is done again: so it is never much.
            share = task.host.careful_share(came, _CAREFUL_RECORDS)
            self._give(task, came[:share])
            task.host.left = () if task.is_paused else [*task.host.left, *came[share:]]
            self._commit()
        else:
            self._give(task, came)
        taken = count - len(task.host.left)
        flow = task.flow(taken, is_alone=len(self._tasks) == 1)
        if flow == "pause":
            self._consumer.pause(task.partition)
        elif flow == "begin":
            self._consumer.begin(task.partition, task.next_offset)
        return taken

    def _give(self, task: Task, came: Sequence[Record]) -> None:
        self._healing(task, partial(task.process, came))
        self._metrics.consumed(len(came) - len(task.host.left))
        if self._transactions.is_committing:
            if sum(running.host.waiting.size_bytes for running in self._running()) < self._runtime.batch_bytes_max:
                return  # It can wait for the end of the commit.
            self._finish()
        self._transactions.send(task)  # At once, while it is in the processor's cache.

    def _send(self) -> float:
        """Hand everything forwarded to the transaction; the seconds until the commit before it had ended."""
        began_s = time.monotonic()
        self._finish()
        waited_s = time.monotonic() - began_s
        for task in self._running():
            self._transactions.send(task)
        return waited_s

    def _commit(self, limit_s: float | None = None, *, is_awaited: bool = True) -> None:
        """Commit outputs and input offsets in one transaction; the states follow, now or with the next `_finish`."""
        self._send()
        if not self._producer.is_open and not any(task.has_uncommitted for task in self._running()):
            self._policy.emptied()
            return
        self._transactions.begin_commit(self._running(), self._consumer.group_metadata(), limit_s)
        if is_awaited:
            self._finish()

    def _finish(self) -> None:
        """Wait for the commit under way, if there is one."""
        if self._transactions.finish():
            self._failures = 0
            self._policy.committed(time.monotonic())
            self._held.went_on(self._tasks.values())

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """Commit input offsets without a transaction, each with a note of how far the outputs follow from it.

        Raises:
            TransactionAborted: we are no member any more, or nobody knows whether it was done.
        """
        notes = {partition: str(self._tasks[partition].note_with_ends) for partition in offsets}
        self._transactions.send_positions(self._tasks, offsets, notes)
        self._consumer.commit(offsets, notes)

    def _write_back(self, now_s: float, taken: int) -> None:
        """Bring the stores up to date, a piece in each turn."""
        tasks = self._running()
        if self._writes.is_due(tasks, now_s):
            now_ms = int(time.time() * 1000)
            for task in tasks:
                task.state.start_writing(now_ms)
            self._shown.states(tasks, self._consumer.lag, now_ms)
        for task, keys in self._writes.pieces(tasks, taken):
            self._healing(task, partial(task.state.write_some, keys))

    def _try(self, action: Callable[[], None]) -> None:
        """Do something in a transaction; if it fails, go back to the last commit."""
        try:
            action()
        except TransactionAborted as error:
            self._recover(error)

    def _recover(self, error: TransactionAborted) -> None:
        """Forget the open transaction: every running task begins again from what Kafka says was committed."""
        try:
            self._finish()  # What was ready before is not at fault.
        except TransactionAborted as earlier:
            error = earlier
        log.warning("transaction rolled back", pipeline=self._pipeline.name, why=str(error))
        self._metrics.aborted(type(error).__name__)
        time.sleep(back_off_s(error, self._failures))
        self._failures += 1
        if isinstance(error, ProducerLost) and kafka_errors.is_fenced(error):
            self._on_fenced()
        is_learnt = isinstance(error, OutputTooLarge) and blame(error, self._running(), self._limits, self._pipeline)
        if is_learnt:
            self._producer.limit_batches(self._limits.smallest)
        if isinstance(error, ProducerLost) or is_learnt:
            self._producer.start()
        else:
            self._producer.abort()
        # Where nothing was to be committed yet, states and offsets are known; else Kafka is asked for both.
        is_known = isinstance(error, ProcessorFailed) and self._producer.is_transactional
        for task in self._running():
            self._again(task, task.committed_offset if is_known else None)
        self._policy.emptied()

    def _again(self, task: Task, offset: int | None) -> None:
        """Rewind a task to its last commit, which is at this input offset; None: to wherever Kafka says it is."""
        self._consumer.pause(task.partition)
        task.rewind()
        if offset is not None and task not in self._to_hold:
            try:
                self._begin(task, offset)
            except TransactionAborted:
                task.rewind()
            else:
                return
        if (error := self._to_hold.pop(task, None)) is not None:
            self._held.hold(task, error)
        else:
            self._restorer.add(task)

    def _healing(self, task: Task, step: Callable[[], _Done]) -> _Done:
        """Do what uses a task's state; a damaged one is wiped, and the rewind that follows restores it.

        Raises:
            TransactionAborted: it was damaged, or the task cannot go on and is held after the rewind.
        """
        try:
            return step()
        except PartitionHeld as error:
            self._to_hold[task] = error
            raise ProcessorFailed(str(error)) from error
        except StateDamaged as error:
            log.error("local state damaged; restoring it from the SOW topic", partition=task.partition, why=str(error))
            try:
                self._finish()  # Now: it would give the empty state a position.
            finally:
                task.state.heal(error)
            raise TransactionAborted(str(error)) from error

    def _hold_unreadable(self) -> None:
        """Hold the partitions whose input cannot be read on; what came before is committed first."""
        unreadable = self._consumer.take_unreadable()
        if not unreadable:
            return
        self._try(self._commit)
        for partition, error in unreadable.items():
            task = self._tasks.get(partition)
            if task is not None and task.task_state is TaskState.RUNNING:
                self._consumer.pause(partition)
                task.rewind()
                self._held.hold(task, error)

    def _let_go(self, partitions: list[int]) -> None:
        for partition in partitions:
            self._restorer.remove(partition)
            self._held.forget(partition)
            if (task := self._tasks.pop(partition, None)) is not None:
                self._to_hold.pop(task, None)
                self._beat()
                task.let_go()
        self._shown.gauges(self._tasks, self._restorer.remaining)
        log.info("let go", topic=self._pipeline.source, partitions=partitions)

    def _running(self) -> list[Task]:
        return [task for task in self._tasks.values() if task.task_state is TaskState.RUNNING]
