"""The loop: poll → process → emit → commit → apply, for all partitions of one pipeline that this thread owns.

The guarantee follows from the order: records and deltas are produced, then committed together with the input offsets
in one Kafka transaction, and only then the state follows. Work that fails before the commit is rolled back and
repeated; state that is lost after the commit is read back from the SOW topic.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Literal

import structlog

from processor.errors import (
    PartitionHeld,
    ProcessorFailed,
    ProducerLost,
    SowstreamError,
    StateDamaged,
    TransactionAborted,
)
from processor.hosting.output_limits import OutputLimits
from processor.hosting.pipeline import refuse_grown
from processor.kafka import errors as kafka_errors
from processor.kafka.message import by_partition
from processor.runtime.loop.held_tasks import HeldTasks
from processor.runtime.loop.state_access import StateGuard, WriteBack, is_writing, start_writing, wipe_state
from processor.runtime.loop.task_metrics import TaskMetrics
from processor.runtime.loop.transactions import CommitPolicy, Transactions
from processor.runtime.loop.watchdog import ProcessorCall
from processor.runtime.metrics import ThreadMetrics
from processor.runtime.rejections import RejectionLog
from processor.runtime.task import Task
from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from processor.api import Codec
    from processor.config import RuntimeConfig
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.clients.group_consumer import GroupConsumer
    from processor.kafka.message import Message
    from processor.record import Record
    from processor.runtime.loop.clients import Clients

log = structlog.stdlib.get_logger("sowstream.thread")

_IDLE_POLL_S = 0.02  # Also the longest delay of a punctuation; the least interval of a conflated topic is 100 ms.
_CAREFUL_RECORDS = 200
_READ_MIN = 200  # The least number of records to read between two pieces of punctuation work.
_GAUGES_S = 0.5
_BATCHES_MAX = 2  # The bytes of a transaction, as a multiple of the bytes that may wait.


class StreamThread:
    """One pipeline's partitions on one thread, with one consumer and one transaction at a time."""

    def __init__(self, pipeline: Pipeline, clients: Clients, runtime: RuntimeConfig, codec: Codec) -> None:
        self._pipeline = pipeline
        self._runtime = runtime
        self._committer = clients.committer
        self._producer = clients.committer.producer
        self._restorer = clients.restorer
        self._standbys = clients.standbys
        self._seen = clients.seen
        self._open_consumer = clients.consumer
        self._on_fenced = clients.fenced
        self._beat = clients.beat
        self._consumer: GroupConsumer
        self._tasks: dict[int, Task] = {}
        self._policy = CommitPolicy(
            interval_s=runtime.commit_interval_s, records_max=runtime.internal.commit_records_max
        )
        self._metrics = ThreadMetrics(pipeline.name)
        self._held = HeldTasks(pipeline.name, self._metrics, clients.notices)
        self._restorer.on_held = self._held.hold
        self._task_metrics = TaskMetrics(pipeline, self._metrics, self._held, clients)
        self._to_hold: dict[Task, PartitionHeld] = {}  # After the rollback of the open transaction.
        self._rewound: set[int] = set()  # Partitions rewound since the first of two polls.
        self._rejections = RejectionLog(pipeline.source)
        bytes_max = _BATCHES_MAX * runtime.batch_bytes_max
        self._transactions = Transactions(pipeline, clients.committer, self._metrics, bytes_max=bytes_max)
        self._gauged_s = time.monotonic()
        self._writes = WriteBack(runtime.write_back_bytes, runtime.internal.write_back_interval_s, self._gauged_s)
        self._repair = partial(StateGuard, self._heal)  # Surrounds each use of a task's state.
        self.call = ProcessorCall(pipeline.name, self._heal)  # The same for a call of its processor.
        self._has_more = False  # Whether a processor has more punctuation work to do at once.
        self._read_max = runtime.batch_records_max  # The most records to read in the next turn.
        self._limits = clients.limits or OutputLimits(pipeline, batch_bytes_max=runtime.batch_bytes_max)
        new_task = partial(Task, pipeline, codec=codec, input_codec=clients.input_codec)
        self._new_task = partial(new_task, rejections=self._rejections, limits=self._limits)
        self._broken = False  # Whether an error ends the thread: the open transaction may be half done.

    def run(self, stop: threading.Event) -> None:
        """Run the loop until the event is set; then commit, release the partitions and leave the group.

        Raises:
            Stop: the thread cannot go on.
        """
        self._producer.start()
        self._consumer = self._open_consumer(self)
        try:
            while not stop.is_set():
                self._turn()
            with self._transaction():
                self._commit()
        except BaseException as error:
            self._broken = True
            # Logged before the release, which may take long, as with states on a full disk.
            log.error("stopping", pipeline=self._pipeline.name, error=str(error))
            with contextlib.suppress(SowstreamError):  # The first error is raised.
                self._finish_commit()
            raise
        finally:
            if self._broken:
                self._producer.close()  # First: no output may arrive once others own the partitions.
            # Closing revokes: the tasks are closed in `on_revoked`.
            self._consumer.close()
            self._restorer.close()
            self._standbys.close()
            self._producer.close()
            for task in list(self._tasks.values()):
                task.release()

    def on_assigned(self, partitions: list[int]) -> None:
        """Create a task for each new partition and queue its restore; nothing here is slow."""
        log.info("assigned", topic=self._pipeline.source, partitions=partitions)
        refuse_grown(self._pipeline, partitions)
        for partition in partitions:
            self._tasks[partition] = self._new_task(partition)
            self._restorer.add(self._tasks[partition])
        self._task_metrics.rebalanced("assigned", self._tasks)

    def on_revoked(self, partitions: list[int]) -> None:
        """Commit the work of partitions that another member gets, then release them."""
        if not self._broken:
            # The next owner and the group wait for this commit: after the limit it is rolled back.
            with self._transaction():
                self._commit(limit_s=self._runtime.session_timeout_s / 2)
        self._release(partitions, "revoked")

    def on_lost(self, partitions: list[int]) -> None:
        """Roll back the work of partitions that another member owns already, then release them."""
        if not self._broken:
            self._recover(TransactionAborted("partitions lost"))
        self._release(partitions, "lost")

    def _turn(self) -> None:
        """Run one turn of the loop."""
        self._beat()
        began_s = time.monotonic()
        messages = self._poll()
        polled_s = time.monotonic()
        with self._transaction():
            self._process_and_commit(messages, polled_s, waited_s=polled_s - began_s)
        if self._restorer.is_busy:
            for task, offset in self._restorer.advance(0.0 if messages or self._has_more else _IDLE_POLL_S):
                with self._transaction():
                    self._start(task, offset)
            self._task_metrics.task_states(self._tasks, self._restorer.remaining)
        self._hold_unreadable()
        for task in self._held.due(self._tasks):
            self._restorer.add(task)
        self._restore_late()
        self._standbys.turn(
            self._consumer.member_id, self._tasks, is_idle=not messages, is_restoring=self._restorer.is_busy
        )

    def _poll(self) -> list[Message]:
        """Read the records that wait, else those that arrive within the idle time."""
        running = self._running()
        # Less the records left from earlier turns; at least one, as the poll also serves the group membership.
        left = sum(len(task.left) for task in running if not task.is_backlogged)
        most = max(1, self._read_max - left)
        has_left = any(task.left for task in running)
        is_awaited = has_left or self._restorer.is_busy or self._has_more or is_writing(running)
        messages = self._consumer.poll(most, 0.0 if is_awaited else self._producer.settling_s)
        if not messages and not has_left:
            with self._transaction():
                self._finish_commit()
            # The client sleeps whole milliseconds, rounded down; without one more the rest would be a busy loop.
            rest_s = min(_IDLE_POLL_S, self._policy.rest_s(time.monotonic()) + 0.001)
            messages = self._consumer.poll(1, 0.0 if is_awaited else rest_s)
            if messages:
                self._rewound.clear()
                more = self._consumer.poll(most - 1, 0.0)
                # A revocation in there may have rewound others, which begin before their first message.
                messages = [each for each in messages if each.partition() not in self._rewound] + more
        return messages

    def _process_and_commit(self, messages: list[Message], began_s: float, *, waited_s: float) -> None:
        """Process the messages, punctuate, emit, commit if it is time, and apply a piece to the stores."""
        arrived, taken = by_partition(messages), 0
        for running in self._running():
            if (running.left or running.partition in arrived) and not running.is_paused:
                taken += self._process(running, arrived.get(running.partition, []))
        has_left = any(task.left for task in self._running())
        self._seen.look(self._running(), self._consumer.ended)
        began_s += self._emit()
        emitted, self._has_more = 0, False
        for task in self._running():
            was_paused, next_offset = task.is_paused, task.next_offset
            # While the input is paused, the work is that of the record at which it is.
            with self.call.of(task, task.next_offset if was_paused else task.committed_offset):
                self._has_more |= task.punctuate()
            emitted += self._send(task)
            if (was_paused and not task.is_paused) or task.next_offset > next_offset:
                self._consumer.begin(task.partition, task.next_offset)
        self._read_max = self._runtime.batch_records_max
        if self._has_more:  # No more is read between two pieces than a piece emits, so that neither delays the other.
            self._read_max = min(self._read_max, max(emitted, _READ_MIN))
        now_s = time.monotonic()
        if taken or emitted or any(task.has_uncommitted for task in self._running()):
            self._policy.worked(now_s, now_s - began_s, taken, is_urgent=emitted > 0)
        is_drained = len(messages) < self._runtime.batch_records_max and not has_left
        if self._policy.due(now_s, drained=is_drained) or self._transactions.is_large:
            # If no input waits, records that arrive during the commit go into one transaction after it.
            self._commit(is_awaited=is_drained)
        self._apply(now_s, taken)
        if now_s - self._gauged_s >= _GAUGES_S:
            self._gauged_s = now_s
            self._task_metrics.gauges(self._tasks, self._restorer.remaining, self._consumer.lag)
            self._rejections.flush()
            self._held.release_recovered(self._tasks.values())
        self._metrics.loop(waited_s, now_s - began_s)

    def _start(self, task: Task, offset: int) -> None:
        """Start a restored task at an input offset, or hold it where a former owner's processor did not return."""
        if self._held.inherit(task, offset):
            return
        with self._repair(task):
            task.start(offset)
        self._committer.begin_task(task, offset, self._consumer)
        self._consumer.begin(task.partition, task.next_offset)
        self._held.task_started(task)

    def _process(self, task: Task, messages: list[Message]) -> int:
        """Process the records of one partition, as far as its outputs may wait; returns the number of them."""
        batch = [*task.left, *self._consumer.records(task.partition, messages)]
        if not (count := len(batch)):
            return 0
        if batch[0].offset <= task.suspects.until:
            # One of these may fail, and the work before it is then repeated: a short transaction repeats little.
            share = task.suspects.share(batch, _CAREFUL_RECORDS)
            self._process_batch(task, batch[:share])
            task.left = () if task.is_paused else [*task.left, *batch[share:]]
            self._commit()
        else:
            self._process_batch(task, batch)
        taken = count - len(task.left)
        flow = task.flow(taken, is_alone=len(self._tasks) == 1)
        if flow == "pause":
            self._consumer.pause(task.partition)
        elif flow == "begin":
            self._consumer.begin(task.partition, task.next_offset)
        return taken

    def _process_batch(self, task: Task, batch: Sequence[Record]) -> None:
        """Call a task's processor with a batch of records and send its outputs, unless a commit is under way."""
        with self.call.of(task, batch[0].offset, batch[-1].offset):
            task.process(batch)
        self._metrics.consumed(len(batch) - len(task.left))
        if self._transactions.is_committing:
            if sum(running.waiting.size_bytes for running in self._running()) < self._runtime.batch_bytes_max:
                return  # The output waits until the commit has ended.
            self._finish_commit()
        self._send(task)  # At once, while it is in the CPU's cache.

    def _send(self, task: Task) -> int:
        """Send the outputs of a task that wait, while no commit is under way; returns their number."""
        return self._transactions.send(task) if task.waiting.records else 0

    def _emit(self, *, is_last: bool = False) -> float:
        """Send all records once the commit under way has ended, those of `flush` if `is_last`; returns the seconds."""
        began_s = time.monotonic()
        self._finish_commit()
        waited_s = time.monotonic() - began_s
        for task in self._running():
            if is_last and task.flushes:
                with self.call.of(task, task.committed_offset):
                    task.flush()
            self._send(task)
        return waited_s

    def _commit(self, limit_s: float | None = None, *, is_awaited: bool = True) -> None:
        """Commit outputs and input offsets in one transaction; the states follow in `_finish_commit`."""
        self._emit(is_last=True)
        if not self._producer.is_open and not any(task.has_uncommitted for task in self._running()):
            self._policy.emptied()
            return
        self._transactions.begin_commit(self._running(), self._consumer, limit_s)
        if is_awaited:
            self._finish_commit()

    def _finish_commit(self) -> None:
        """Wait for the commit under way, if there is one, and commit the states."""
        if self._transactions.finish():
            self._policy.committed(time.monotonic())
            self._held.release_recovered(self._tasks.values())

    def _apply(self, now_s: float, taken: int) -> None:
        """Write committed records to the stores, a piece in each turn."""
        tasks = self._running()
        if self._writes.is_due(tasks, now_s):
            now_ms = int(time.time() * 1000)
            start_writing(tasks, now_ms)
            self._task_metrics.states(tasks, self._consumer.lag, now_ms)
        for task, store, keys in self._writes.pieces(tasks, taken):
            with self._repair(task):
                store.write_some(keys)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Surround a step of the open transaction: if the step fails, all tasks go back to the last commit."""
        try:
            yield
        except TransactionAborted as error:
            self._recover(error)

    def _recover(self, error: TransactionAborted) -> None:
        """Roll back the open transaction and rewind every running task to its last commit."""
        try:
            self._finish_commit()  # The transaction before is not at fault.
        except TransactionAborted as earlier:
            error = earlier
        if isinstance(error, ProducerLost) and kafka_errors.is_fenced(error):
            self._on_fenced()
        is_known = self._transactions.roll_back(error, self._running(), self._limits)
        for task in self._running():
            self._rewind(task, task.committed_offset if is_known else None)
        self._policy.emptied()

    def _rewind(self, task: Task, offset: int | None) -> None:
        """Rewind a task to its last commit, which is at this input offset; None: at the offset that Kafka has."""
        self._consumer.pause(task.partition)
        self._rewound.add(task.partition)
        task.rewind()
        if offset is not None and task not in self._to_hold:
            try:
                self._start(task, offset)
            except TransactionAborted:
                task.rewind()
            else:
                return
        if (error := self._to_hold.pop(task, None)) is not None:
            self._held.hold(task, error)
        else:
            self._restorer.add(task)

    def _heal(self, task: Task, error: BaseException) -> None:
        """Note that a task is to be held, or wipe its state if that is damaged; a rewind follows.

        Raises:
            TransactionAborted: the state was damaged, or the task cannot go on and is held after the rewind.
        """
        if isinstance(error, PartitionHeld):
            self._to_hold[task] = error
            raise ProcessorFailed(str(error)) from error
        if isinstance(error, StateDamaged):
            wipe_state(task, error, self._finish_commit)

    def _hold_unreadable(self) -> None:
        """Hold the partitions whose input cannot be read any further, once all records before are committed."""
        unreadable, ended = self._consumer.unreadable, []
        for task in self._running() if unreadable else ():
            if task.partition not in unreadable or task.left:
                continue
            if task.has_held_work:
                task.reached_end()  # A copy delivers the waiting updates first, so that an order skips none of them.
            else:
                ended.append(task)
        if not ended:
            return
        with self._transaction():
            self._commit()
        for task in ended:  # After a failed commit it reads the records before again.
            error = unreadable.get(task.partition)
            if error is not None and task.task_state is TaskState.RUNNING:
                self._consumer.pause(task.partition)
                task.rewind()
                self._held.hold(task, error)

    def _restore_late(self) -> None:
        """Restore again the partitions whose input may have lost deletes that they have not read yet."""
        for task in [task for task in self._running() if self._restorer.comparison.lacks_deletes(task)]:
            with self._transaction():
                self._commit()
            if task in self._running():
                self._rewind(task, None)

    def _release(self, partitions: list[int], why: Literal["revoked", "lost"]) -> None:
        """Close the tasks of partitions that have left this thread."""
        for partition in partitions:
            self._restorer.remove(partition)
            self._held.forget(partition)
            if (task := self._tasks.pop(partition, None)) is not None:
                self._to_hold.pop(task, None)
                self._beat()
                task.release()
        self._task_metrics.gauges(self._tasks, self._restorer.remaining)
        log.info("let go", topic=self._pipeline.source, partitions=partitions)
        self._task_metrics.rebalanced(why, self._tasks)

    def _running(self) -> list[Task]:
        return [task for task in self._tasks.values() if task.task_state is TaskState.RUNNING]
