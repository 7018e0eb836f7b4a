"""Sends and commits the outputs of a thread: when to commit, the steps of a commit, and those after a failure."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import OutputTooLarge, ProcessorFailed, ProducerLost
from processor.kafka.partitioner import partition_for
from processor.wire.publisher_mark import mark_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from processor.errors import TransactionAborted
    from processor.hosting.output_limits import OutputLimits
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.clients.group_consumer import GroupConsumer
    from processor.record import Outgoing
    from processor.runtime.loop.committer import Committer
    from processor.runtime.metrics import ThreadMetrics
    from processor.runtime.task import Prepared, Task


log = structlog.stdlib.get_logger("sowstream.thread")

BEHIND_MAX_S: Final = 3_660.0
"""How far input may be ahead of the clock without a warning: an hour, which brokers allow publishers, and a minute."""
_PERIOD_S: Final = 60.0


class ClockCheck:
    """Warns, at most once a minute, when the clock of this machine is behind the records of one input topic.

    Outputs carry the time of this machine (merge.md, "Headers"), and Kafka deletes deltas and dead letters by it:
    a clock that is days behind has them deleted early. A clock that is more than an hour ahead needs no check of its
    own, as Kafka refuses the outputs (`message.timestamp.after.max.ms`). One thread only.
    """

    def __init__(self, topic: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start without a warning.

        Args:
            topic: the input topic.
            clock_s: a clock that does not jump, in seconds.
        """
        self._topic = topic
        self._clock_s = clock_s
        self._next_s = 0.0

    def compare(self, timestamp_ms: int, now_ms: int) -> None:
        """Warn if a record's timestamp is too far ahead of the clock, both in milliseconds since the epoch."""
        behind_s = (timestamp_ms - now_ms) / 1000
        if behind_s <= BEHIND_MAX_S or self._clock_s() < self._next_s:
            return
        self._next_s = self._clock_s() + _PERIOD_S
        log.warning(
            "records are from the future",
            topic=self._topic,
            seconds_ahead=round(behind_s),
            remedy="set the clock of this machine, or that of the publisher: Kafka deletes deltas and dead letters by "
            "the time of this machine",
        )


SPACING_S: Final = 0.025
"""Least time from a commit to one of punctuation work. With 6,500 deliveries a second, on two cores shared with the
broker, it halves the number of commits and saves a fifth of the broker's CPU time."""


class CommitPolicy:
    """Decides when to commit. It reads no clock: times are arguments.

    A transaction costs tens of milliseconds, regardless of its size. A thread that mostly waits for input commits as
    soon as no input waits, which keeps latency near the cost of a commit. A busy thread lets the transaction grow up to
    the interval, which keeps that cost small. The outcome of punctuation is urgent: it is committed as soon as no input
    waits, but not more often than `SPACING_S`, because it arrives in drops that would each get their own transaction.
    """

    def __init__(self, *, interval_s: float, records_max: int) -> None:
        self._interval_s = interval_s
        self._records_max = records_max
        self._urgent_from_s = 0.0
        self._records = 0
        self._first_s: float | None = None
        self._worked_s = 0.0
        self._is_urgent = False

    def worked(self, now_s: float, seconds: float, records: int, *, is_urgent: bool = False) -> None:
        """Add work that is to be committed.

        Args:
            now_s: the end of the work.
            seconds: its duration.
            records: the number of records that it processed.
            is_urgent: whether punctuation is part of it.
        """
        self._is_urgent = self._is_urgent or is_urgent
        if self._first_s is None:
            self._first_s = now_s - seconds
        self._worked_s += seconds
        self._records += records

    def due(self, now_s: float, *, drained: bool) -> bool:
        """Decide whether to commit now; `drained`: no further input was waiting."""
        if self._first_s is None:
            return False
        open_s = now_s - self._first_s
        if open_s >= self._interval_s or self._records >= self._records_max:
            return True
        return drained and self.rest_s(now_s) <= 0

    def rest_s(self, now_s: float) -> float:
        """Compute how long a thread without input may sleep until a commit is due; infinity: nothing is to be done."""
        if self._first_s is None:
            return math.inf
        due_s = self._urgent_from_s
        if not self._is_urgent:
            due_s = self._first_s + min(self._interval_s, self._worked_s * 2)
        return max(0.0, due_s - now_s)

    def committed(self, now_s: float) -> None:
        """Begin the next transaction, as one was committed at this time."""
        self.emptied()
        self._urgent_from_s = now_s + min(SPACING_S, self._interval_s)

    def emptied(self) -> None:
        """Begin the next transaction without a commit: the work had no outcome, or was rolled back."""
        self._records, self._first_s, self._worked_s, self._is_urgent = 0, None, 0.0, False


_BACK_OFF_S: Final = (0.0, 0.1, 0.5, 2.0)  # By the number of transactions that failed in a row before.


class Transactions:
    """The transactions of one thread, one after the other without a pause in between.

    While one is being committed the thread can go on::

                     begin_commit                       finish
        send  send  send  │  process the next records     │  send  send …
                          └─ Kafka commits the records ──┘

    Records processed meanwhile depend on states that may still be rolled back. Each task keeps prepared changes apart
    from later ones, and later output waits for the end of the commit: a producer has one open transaction.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        committer: Committer,
        metrics: ThreadMetrics,
        *,
        bytes_max: int = sys.maxsize,
    ) -> None:
        """Begin with nothing sent.

        Args:
            pipeline: names the topics of the outputs.
            committer: sends and commits them.
            metrics: counts them.
            bytes_max: a transaction of this size is large.
        """
        self._pipeline = pipeline
        self._topics = {role: pipeline.output(role) for role in (*pipeline.roles, *pipeline.outlets)}
        self._committer = committer
        self._producer = committer.producer
        self._metrics = metrics
        self._clock = ClockCheck(pipeline.source)
        self._prepared: dict[Task, Prepared] | None = None  # The transaction that is being committed.
        self._bytes_max = bytes_max
        self._sent_bytes = 0
        self._failures = 0  # Failed transactions in a row.

    def send(self, task: Task) -> int:
        """Send the records that a task's processor forwarded, while no commit is under way; returns their number."""
        assert self._prepared is None
        count = 0
        for role, outgoing in task.take_outputs().items():
            topic = self._topics[role]
            if role == "sow":
                size = self._producer.send_marked(topic, task.partition, outgoing, task.await_delivery(role))
            elif role in self._pipeline.outlets:
                size = self._send_placed(topic, task.take_places(role), outgoing)
            elif role in self._pipeline.repartitioned:
                size = self._send_placed(topic, self._homes(outgoing), outgoing)
            else:
                size = self._producer.send(topic, task.partition, outgoing)
            self._metrics.emitted(role, len(outgoing), size)
            self._sent_bytes += size
            count += len(outgoing)
        return count

    def _homes(self, outgoing: Sequence[Outgoing]) -> list[int]:
        """The partitions that the hashes of the keys choose among those of the settings.

        Kafka's client would take those that the topic has: where it has grown, a record would be sent back and forth
        between a worker and a partition that is not its key's by the settings.
        """
        partitions = self._pipeline.topic.partitions
        return [partition_for(key or b"", partitions) for key, _, _ in outgoing]

    def _send_placed(self, topic: str, places: Sequence[int], outgoing: Sequence[Outgoing]) -> int:
        """Send each record to the partition that its processor chose, in their order within each partition."""
        by_partition: dict[int, list[Outgoing]] = {}
        for partition, record in zip(places, outgoing, strict=True):
            by_partition.setdefault(partition, []).append(record)
        return sum(self._producer.send(topic, partition, records) for partition, records in by_partition.items())

    @property
    def is_large(self) -> bool:
        """True if the open transaction has reached the size at which it is committed."""
        return self._producer.is_open and self._sent_bytes >= self._bytes_max

    @property
    def is_committing(self) -> bool:
        """True if a commit is under way."""
        return self._prepared is not None

    def begin_commit(self, tasks: Sequence[Task], consumer: GroupConsumer, limit_s: float | None) -> None:
        """Begin to commit the records sent, with input offsets and marks; `finish` must follow before the next `send`.

        Args:
            tasks: all running tasks.
            consumer: the member of the group.
            limit_s: the longest time that the commit may take; None: as long as a transaction.
        """
        assert self._prepared is None
        self._sent_bytes = 0
        for task in tasks:
            self._committer.stage_position(task)
            self._send_marks(task)
        prepared = {task: task.prepare() for task in tasks}
        self._committer.begin_commit(prepared, consumer, limit_s)
        self._prepared = prepared

    def finish(self) -> bool:
        """Wait for the commit under way, then commit the states; returns whether there was one.

        Raises:
            TransactionAborted: it failed, or its outcome is unknown: the tasks are to be rewound.
        """
        committed, self._prepared = self._prepared, None
        if committed is None:
            return False
        self._metrics.committed(self._producer.finish_commit())
        for prepared in committed.values():
            self._metrics.counts(prepared.counts)  # Kafka has the records, even if a state has to be read back.
            if taken := prepared.counts.taken:
                self._clock.compare(max(taken)[0], int(time.time() * 1000))
        for task in committed:
            task.committed()
        self._failures = 0
        return True

    def roll_back(self, error: TransactionAborted, tasks: Sequence[Task], limits: OutputLimits) -> bool:
        """Abort the open transaction, after a pause if others failed before it; the tasks are to be rewound.

        Returns whether states and input offsets are those of the last commit; if not, both are read back from Kafka.

        Args:
            error: the reason.
            tasks: all running tasks; those with an output too large for its topic look for the record at fault.
            limits: the known size limits of the outputs, to which the one that Kafka enforced is added.
        """
        log.warning("transaction rolled back", pipeline=self._pipeline.name, why=str(error))
        self._metrics.aborted(type(error).__name__)
        time.sleep(back_off_s(error, self._failures))
        self._failures += 1
        is_learnt = isinstance(error, OutputTooLarge) and _suspect_tasks(error, tasks, limits, self._pipeline)
        if is_learnt:
            self._producer.limit_batches(limits.smallest)
        if isinstance(error, ProducerLost) or is_learnt:
            self._producer.start()
            return False
        # A processor fails before a commit begins; after any other error the outcome of one may be unknown.
        return self._producer.abort() and isinstance(error, ProcessorFailed)

    def _send_marks(self, task: Task) -> None:
        """Send the changed marks, the last value of each."""
        if task.marks is not None and (staged := task.marks.staged):
            records: list[Outgoing] = [mark_record(name, text) for name, text in staged]
            size = self._producer.send_marked(
                self._topics["mark"], task.partition, records, task.await_delivery("mark")
            )
            self._metrics.emitted("mark", len(records), size)


def back_off_s(error: TransactionAborted, failures: int) -> float:
    """Seconds to wait before the work of a failed transaction is repeated.

    After an error of a processor there is no wait: each rollback singles out one more record, and time mends nothing.

    Args:
        error: the reason of the failure.
        failures: how many transactions failed in a row before this one.
    """
    return 0.0 if isinstance(error, ProcessorFailed) else _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]


def _suspect_tasks(error: OutputTooLarge, tasks: Iterable[Task], limits: OutputLimits, pipeline: Pipeline) -> bool:
    """Have each task that may have made a refused output look for the record at fault.

    Args:
        error: the refusal, with topic and partition of the output as far as Kafka names them.
        tasks: the tasks of the transaction.
        limits: the known size limits, to which this one is added.
        pipeline: lists the outputs whose partition does not identify the task.

    Returns:
        Whether the limit of the topic was not known before.
    """
    role = None if error.topic is None else limits.role_of(error.topic)
    is_learnt = error.topic is not None and limits.refused(error.topic)
    is_anywhere = error.partition is None or role in pipeline.repartitioned or role in pipeline.outlets
    for task in tasks:
        if is_anywhere or task.partition == error.partition:
            task.refused(role, error, is_learnt=is_learnt)
    return is_learnt
