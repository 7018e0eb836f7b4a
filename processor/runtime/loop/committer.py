"""The seam between the two guarantees: how a thread's outputs and its input offsets are committed.

A thread makes the same calls under both::

    begin_task      a partition begins at an input offset; nothing of it has been sent
    producer.send   its outputs, …
    stage_position  before the marks are sent
    begin_commit    all that was sent, then the input offsets
    producer.abort  instead of it, after a failure

`worker/assembly.py` chooses one by the settings. The loop, its transactions and the tasks do not ask which one it is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from processor.runtime.metrics import ThreadMetrics
from processor.store.marks import POSITION_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.kafka.clients.group_consumer import GroupConsumer
    from processor.kafka.clients.staged_producer import StagedProducer
    from processor.kafka.clients.transactional_producer import TransactionalProducer
    from processor.record import Outgoing
    from processor.runtime.recovery.input_position import InputPositions
    from processor.runtime.task import Prepared, Task


class OutputProducer(Protocol):
    """Sends the outputs of a thread, and gives up those that are not committed. Both producers are one."""

    is_open: bool
    """True if anything was sent that is neither committed nor given up."""

    @property
    def settling_s(self) -> float:
        """Seconds for which a thread that is not busy had better send nothing, as Kafka is ending the last commit."""

    def start(self) -> None:
        """Start, or start again: nothing that was sent before arrives later than this."""

    def limit_batches(self, bytes_max: int) -> None:
        """Send no batch of several records larger than this, from the next `start` on."""

    def send(self, topic: str, partition: int | None, records: Sequence[Outgoing]) -> int:
        """Send records to one partition; None lets each key's hash choose. Returns the bytes of their values."""

    def send_marked(
        self, topic: str, partition: int, records: Sequence[Outgoing], delivered: Callable[[int], None]
    ) -> int:
        """`send`; the offset of the last record is reported during a later call."""

    def finish_commit(self) -> float:
        """Wait for the end of the commit that has begun; returns the seconds that it took."""

    def abort(self) -> bool:
        """Give up what was sent; returns whether no reader will see anything of it."""

    def close(self) -> None:
        """Close the producer; records that are not committed are given up."""


class Committer(Protocol):
    """Commits outputs and input offsets; the order in which Kafka gets them is the delivery guarantee."""

    @property
    def producer(self) -> OutputProducer:
        """Sends the outputs."""

    def begin_task(self, task: Task, offset: int, consumer: GroupConsumer) -> None:
        """Prepare Kafka for a task that has just begun at an input offset, before anything of it is sent.

        Raises:
            TransactionAborted: the partition may not be ours any more; its task is to be rewound.
        """

    def stage_position(self, task: Task) -> None:
        """Stage the input position as a mark if it belongs to the outputs; called before the marks are sent."""

    def begin_commit(self, prepared: Mapping[Task, Prepared], consumer: GroupConsumer, limit_s: float | None) -> None:
        """Begin to commit what was sent, and the input offset of each task; `finish_commit` follows.

        Args:
            prepared: all running tasks.
            consumer: the member of the group that owns them.
            limit_s: the longest time that the commit may take; None: as long as the producer allows.

        Raises:
            TransactionAborted: it failed, or its outcome is unknown: the tasks are to be rewound.
        """


class TransactionCommitter:
    """Exactly once: outputs, the input position and the input offsets are in one transaction of Kafka."""

    def __init__(self, producer: TransactionalProducer, positions: InputPositions | None = None) -> None:
        """Create it.

        Args:
            producer: has at most one transaction.
            positions: writes the input positions; None: none are written.
        """
        self.producer = producer
        self._positions = positions

    def begin_task(self, task: Task, offset: int, consumer: GroupConsumer) -> None:
        """Do nothing: a crash leaves no records that would have to be recognised."""

    def stage_position(self, task: Task) -> None:
        """Stage the position as one of the marks."""
        if self._positions is not None:
            self._positions.stage(task)

    def begin_commit(self, prepared: Mapping[Task, Prepared], consumer: GroupConsumer, limit_s: float | None) -> None:
        """Commit in the background, with the proof of the membership: unchanged offsets carry it, too."""
        self.producer.begin_commit(
            consumer.topic,
            {task.partition: one.offset for task, one in prepared.items()},
            consumer.group_metadata(),
            notes={task.partition: str(one.metadata) for task, one in prepared.items()},
            limit_s=limit_s,
        )


class StagedCommitter:
    """At least once: outputs are acknowledged stage by stage, and the consumer commits the input offsets after them.

    With each offset goes the end of the SOW topic, by which a restore finds the records that a crash left behind it
    (`hosting.commit_metadata`).
    """

    def __init__(self, producer: StagedProducer, pipeline: Pipeline, positions: InputPositions | None = None) -> None:
        """Create it.

        Args:
            producer: sends in stages.
            pipeline: names the mark topic.
            positions: writes the input positions; None: none are written.
        """
        self.producer = producer
        self._positions = positions
        self._mark = pipeline.output("mark")
        self._metrics = ThreadMetrics(pipeline.name)

    def begin_task(self, task: Task, offset: int, consumer: GroupConsumer) -> None:
        """Commit the end of the SOW topic with the offset, behind which a crash may leave records."""
        if task.redelivered is None:
            self._commit_offsets({task: offset}, consumer)

    def stage_position(self, task: Task) -> None:
        """Do nothing: the position is sent once the SOW records before it are acknowledged."""

    def begin_commit(self, prepared: Mapping[Task, Prepared], consumer: GroupConsumer, limit_s: float | None) -> None:
        """Send all stages; everything is committed when this returns."""
        offsets = {task: one.offset for task, one in prepared.items()}
        self.producer.begin_commit(partial(self._commit_offsets, offsets, consumer), limit_s=limit_s)

    def _commit_offsets(self, offsets: Mapping[Task, int], consumer: GroupConsumer) -> None:
        """Commit input offsets, of which Kafka has acknowledged the outputs, and send the changed positions."""
        metadata = {task: str(task.commit_metadata_with_ends) for task in offsets}
        if self._positions is not None:
            for task, offset in offsets.items():
                if (value := self._positions.changed(task, offset, metadata[task])) is not None:
                    self.producer.send_at_once(self._mark, task.partition, (POSITION_NAME, value, []))
                    self._metrics.emitted("mark", 1, len(value))
        consumer.commit(
            {task.partition: offset for task, offset in offsets.items()},
            {task.partition: note for task, note in metadata.items()},
        )
