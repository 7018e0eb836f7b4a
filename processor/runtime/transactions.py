"""What the tasks of a thread send, and commit after commit of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from processor.kafka.producers.staged_producer import StagedProducer
from processor.store.marks import POSITION_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.kafka.producers.transactional_producer import TransactionalProducer
    from processor.record import Outgoing
    from processor.runtime.process.metrics import ThreadMetrics
    from processor.runtime.recovery.input_position import InputPositions
    from processor.runtime.task import Prepared, Task


class Transactions:
    """One after the other, and between two of them no pause.

    While one is being committed the thread can go on::

                     begin_commit                       finish
        send  send  send  │  process the next records     │  send  send …
                          └─ Kafka commits what was sent ─┘

    What is processed meanwhile stands on states that may yet be rolled back, which is why each task keeps apart what is
    prepared and what came after it. It cannot be sent before the end: a producer has one transaction open at a time.
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
            pipeline: says where the outputs go.
            producer: sends them.
            metrics: counts them.
            positions: has the input positions sent with them; None: nothing has.
            bytes_max: a transaction of more bytes is large.
        """
        self._positions = positions if pipeline.keeps_position else None
        self._pipeline = pipeline
        self._producer = producer
        self._metrics = metrics
        self._prepared: dict[Task, Prepared] | None = None  # What is being committed.
        self._bytes_max = bytes_max
        self._sent_bytes = 0

    def send(self, task: Task) -> int:
        """Send what a task's processor forwarded, while no commit is under way; how many records that was."""
        assert self._prepared is None
        count = 0
        for role, outgoing in task.take_outputs().items():
            topic = self._pipeline.output(role)
            if role == "sow":
                size = self._producer.send_marked(topic, task.partition, outgoing, task.await_delivery(role))
            else:
                chosen = None if role in self._pipeline.repartitioned else task.partition
                size = self._producer.send(topic, chosen, outgoing)
            self._metrics.emitted(role, len(outgoing), size)
            self._sent_bytes += size
            count += len(outgoing)
        return count

    @property
    def is_large(self) -> bool:
        """Whether so much was sent in the open transaction that it is to be committed."""
        return self._producer.is_open and self._sent_bytes >= self._bytes_max

    @property
    def is_committing(self) -> bool:
        """Whether a commit is under way."""
        return self._prepared is not None

    def begin_commit(self, tasks: Sequence[Task], group_metadata: Any, limit_s: float | None) -> None:
        """Have committed what was sent, with input offsets and marks; `finish` comes before anything is sent.

        Args:
            tasks: all that run.
            group_metadata: the proof that we are a member of the group.
            limit_s: the longest it may take; None: as long as a transaction.
        """
        assert self._prepared is None
        self._sent_bytes = 0
        for task in tasks:
            if self._positions is not None and self._producer.is_transactional:
                self._positions.stage(task)
            self._send_marks(task)
        # All positions, also those that did not move: they carry the proof that we are still a member.
        prepared = {task: task.prepare() for task in tasks}
        self._producer.begin_commit(
            self._pipeline.source,
            {task.partition: one.offset for task, one in prepared.items()},
            group_metadata,
            notes={task.partition: str(one.note) for task, one in prepared.items()},
            limit_s=limit_s,
        )
        self._prepared = prepared

    def finish(self) -> bool:
        """Wait for the commit under way, then let the states follow; whether there was one.

        Raises:
            TransactionAborted: it was not done, or nobody knows: the tasks are to be rewound.
        """
        committed, self._prepared = self._prepared, None
        if committed is None:
            return False
        self._metrics.committed(self._producer.finish_commit())
        for prepared in committed.values():
            self._metrics.counts(prepared.counts)  # Kafka has it all, even where a state has to be read back.
        for task in committed:
            task.committed()
        return True

    def send_positions(self, tasks: Mapping[int, Task], offsets: Mapping[int, int], notes: Mapping[int, str]) -> None:
        """Send the input positions that go with offsets which are committed without a transaction.

        Args:
            tasks: by partition.
            offsets: of those partitions that are committed, whose SOW records Kafka has acknowledged.
            notes: the texts beside them.
        """
        if self._positions is None:
            return
        assert isinstance(self._producer, StagedProducer)
        topic = self._pipeline.output("mark")
        for partition, value in self._positions.changed(tasks, offsets, notes).items():
            self._producer.send_at_once(topic, partition, (POSITION_NAME, value, []))
            self._metrics.emitted("mark", 1, len(value))

    def _send_marks(self, task: Task) -> None:
        """Send the changed marks: the last value of each."""
        if task.marks is not None and task.marks.has_staged:
            records: list[Outgoing] = [(name, value, []) for name, value in task.marks.staged]
            topic = self._pipeline.output("mark")
            size = self._producer.send_marked(topic, task.partition, records, task.await_delivery("mark"))
            self._metrics.emitted("mark", len(records), size)
