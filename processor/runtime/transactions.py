"""Sends the tasks' output and commits it, one transaction after another; rolls back a transaction that failed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.errors import OutputTooLarge, ProcessorFailed, ProducerLost
from processor.kafka.clients.staged_producer import StagedProducer
from processor.kafka.partitioner import partition_for
from processor.runtime.watching.clock_check import ClockCheck
from processor.store.marks import POSITION_NAME
from processor.wire.publisher_mark import mark_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from processor.errors import TransactionAborted
    from processor.hosting.output_limits import OutputLimits
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.clients.transactional_producer import TransactionalProducer
    from processor.record import Outgoing
    from processor.runtime.process.metrics import ThreadMetrics
    from processor.runtime.recovery.input_position import InputPositions
    from processor.runtime.task import Prepared, Task

log = structlog.stdlib.get_logger("sowstream.thread")

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
        producer: TransactionalProducer | StagedProducer,
        metrics: ThreadMetrics,
        positions: InputPositions | None = None,
        *,
        bytes_max: int = sys.maxsize,
    ) -> None:
        """Begin with nothing sent.

        Args:
            pipeline: names the topics of the outputs.
            producer: sends them.
            metrics: counts them.
            positions: writes the input positions that are sent with them; None: none are sent.
            bytes_max: a transaction of this size is large.
        """
        self._positions = positions if pipeline.keeps_position else None
        self._pipeline = pipeline
        self._producer = producer
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
        places = task.take_places()
        for role, outgoing in task.take_outputs().items():
            topic = self._pipeline.output(role)
            if role == "sow":
                size = self._producer.send_marked(topic, task.partition, outgoing, task.await_delivery(role))
            elif role in places:
                size = self._send_placed(topic, places[role], outgoing)
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

    def begin_commit(self, tasks: Sequence[Task], group_metadata: Any, limit_s: float | None) -> None:
        """Begin to commit the records sent, with input offsets and marks; `finish` must follow before the next `send`.

        Args:
            tasks: all running tasks.
            group_metadata: the proof that this worker is a member of the group.
            limit_s: the longest time that the commit may take; None: as long as a transaction.
        """
        assert self._prepared is None
        self._sent_bytes = 0
        for task in tasks:
            if self._positions is not None and self._producer.is_transactional:
                self._positions.stage(task)
            self._send_marks(task)
        # All positions, also unchanged ones: they carry the proof of membership.
        prepared = {task: task.prepare() for task in tasks}
        self._producer.begin_commit(
            self._pipeline.source,
            {task.partition: one.offset for task, one in prepared.items()},
            group_metadata,
            notes={task.partition: str(one.metadata) for task, one in prepared.items()},
            limit_s=limit_s,
        )
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

    def roll_back(self, error: TransactionAborted, tasks: Sequence[Task], limits: OutputLimits) -> None:
        """Abort the open transaction, after a pause if others failed before it; the tasks are to be rewound.

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
        else:
            self._producer.abort()

    def send_positions(
        self, tasks: Mapping[int, Task], offsets: Mapping[int, int], metadata: Mapping[int, str]
    ) -> None:
        """Send the input positions for offsets that are committed without a transaction.

        Args:
            tasks: the tasks by partition.
            offsets: the committed input offsets by partition, of which Kafka has acknowledged the SOW records.
            metadata: the offset metadata by partition.
        """
        if self._positions is None:
            return
        assert isinstance(self._producer, StagedProducer)
        topic = self._pipeline.output("mark")
        for partition, value in self._positions.changed(tasks, offsets, metadata).items():
            self._producer.send_at_once(topic, partition, (POSITION_NAME, value, []))
            self._metrics.emitted("mark", 1, len(value))

    def _send_marks(self, task: Task) -> None:
        """Send the changed marks, the last value of each."""
        if task.marks is not None and task.marks.has_staged:
            records: list[Outgoing] = [mark_record(name, text) for name, text in task.marks.staged]
            topic = self._pipeline.output("mark")
            size = self._producer.send_marked(topic, task.partition, records, task.await_delivery("mark"))
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
            task.host.refused(role, error, is_learnt=is_learnt)
    return is_learnt
