"""Changes which engine merges a topic, or where: the fence that all engines heed, its writer, and the wait for workers.

Two parts of Kafka keep two moves apart:

- The *writer* is a transactional producer with one id for each kind of move and topic. The fence is read after the
  producer has started, which fences every earlier one: a process that was only thought dead cannot write any more.
- The *fence* is a record of the control topic, and while it is up, a mark in each partition of the mark topic. So a
  worker that cannot read the control topic is held by its marks, and merges nothing.

A phase of the fence is written in one transaction with the records that belong to it: input positions, the offsets of
the workers' group, marks for readers.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from processor.errors import Stop, TransactionAborted
from processor.installation.control_topic import ControlTopic, fence_mark
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader, patiently
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.repair.worker_positions import first_uncommitted
from processor.wire.control import ALL_PARTITIONS, WORKERS, Fence, Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from processor.config.kafka_names import KafkaNames
    from processor.record import Outgoing

NO_FENCE: Final = Fence(at_ms=0, phase=WORKERS, number=0)
"""The fence of a topic that workers merge, and that was never moved."""

_ASK_TIMEOUT_S: Final = 15.0
_LOOK_S: Final = 0.3


class FencedMove:
    """The writer of one topic's fence; leave its `with` to end it. One thread only."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        names: KafkaNames,
        application_id: str,
        topic: str,
        partitions: int,
        *,
        group: str,
        command: str,
        producer: str,
        transaction_timeout_s: float,
        remedy: str,
    ) -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            names: the Kafka names of the installation.
            application_id: the application of the topic's workers.
            topic: the topic of the settings.
            partitions: the number of partitions of its outputs.
            group: the consumer group of its workers.
            command: the action, for errors: "resharding".
            producer: the last part of the transactional id, by which an earlier run is fenced.
            transaction_timeout_s: how long a transaction may take.
            remedy: the operator's next step if the workers do not leave, a sentence.
        """
        self.fence: Fence
        """The fence as it was last read or written."""
        self.admin = Admin(kafka)
        """Administration of the cluster."""
        self.control = ControlTopic(kafka, self.admin, prefix=names.prefix)
        """The topic of the fence."""
        self._names, self._application_id, self._topic = names, application_id, topic
        self._partitions, self._doing, self._remedy = range(partitions), f"{command} {topic}", remedy
        self._group = group
        self._reader = LogReader(kafka, group=group)
        self._producer = TransactionalProducer(
            kafka, transactional_id=f"{group}.{producer}", transaction_timeout_s=transaction_timeout_s
        )

    def __enter__(self) -> Self:
        """Fence an earlier run, which may be only thought dead, and read the fence; closed if that fails.

        Raises:
            ConfigurationError: there is no control topic.
            Stop: Kafka refuses, or does not answer.
        """
        with ExitStack() as failed:
            failed.push(self)
            # In this order: no other process can write it any more, and a transaction that a dead one left is over.
            self._producer.start()
            entries = self.control.read_existing(self._application_id)
            self.fence = self.control.fence(entries, self._topic, self._kafka_topic("mark")) or NO_FENCE
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._reader.close()

    def write(
        self,
        fence: Fence,
        records: Iterable[tuple[str, int, list[Outgoing]]] = (),
        committed: Mapping[int, int] | None = None,
    ) -> None:
        """Write a fence into the control topic and the marks, in one transaction with records and offsets.

        Args:
            fence: the new fence.
            records: the records, by Kafka topic and partition.
            committed: the new input offsets of the workers' group, which has no members; None: they stay.

        Raises:
            Stop: another process has taken over, or Kafka refuses; the fence is as it was, or its state is not known:
                repeat the command.
        """
        key = Key("fence", self._application_id, self._topic, ALL_PARTITIONS)
        try:
            for kafka_topic, partition, outgoing in records:
                self._producer.send(kafka_topic, partition, outgoing)
            self._producer.send(self.control.topic, 0, [(key.encode(), fence.encode(), [])])
            for partition in self._partitions:
                self._producer.send(self._kafka_topic("mark"), partition, [fence_mark(fence)])
            self._producer.commit(self._kafka_topic("publish"), committed or {}, self._reader.group_metadata())
        except TransactionAborted as error:
            raise Stop(
                f"{self._doing}: phase {fence.phase!r} could not be written, perhaps because another process has taken "
                f"over: {error}. Run the same command again"
            ) from error
        self.fence = fence

    def await_workers(self, timeout_s: float) -> None:
        """Wait until no worker is in the group, no transaction is open, and the offsets of all records are committed.

        Raises:
            Stop: they have not left in time; the message names one. Or one died without a transaction, so that the SOW
                topic has records of input behind its offset: only workers recognise the records that come again.
        """
        deadline_s = time.monotonic() + timeout_s
        while reason := self.busy():
            if time.monotonic() > deadline_s:
                raise Stop(f"{self._doing}: after {timeout_s:g} s {reason}. {self._remedy}")
            time.sleep(_LOOK_S)
        ends = self.admin.end_offsets(self._kafka_topic("sow"), self._partitions)
        partition = first_uncommitted({number: self._note(number) for number in ends}, ends)
        if partition is not None:
            raise Stop(
                f"{self._doing}: a worker without transactions (guarantee: at_least_once) died before it committed "
                f"its offset in partition {partition}: its last records would be merged twice. Let a worker catch "
                "up, then run the same command again"
            )

    def busy(self) -> str:
        """The reason why the workers are not gone yet; empty once they are.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        question = self.admin.ask_group(self._group, self._kafka_topic("publish"), _ASK_TIMEOUT_S)
        if members := question.answer().members:
            return f"the group {self._group} still has members, such as {members[0]}"
        for role in ("sow", "delta", "mark"):
            kafka_topic = self._kafka_topic(role)
            ends = self.admin.end_offsets(kafka_topic, self._partitions)
            # After the ends: a transaction that ends in between is not open any more.
            stable_ends = self.admin.end_offsets(kafka_topic, self._partitions, kind="stable_end")
            for partition, end in ends.items():
                if stable_ends[partition] < end:
                    return f"a transaction of a dead worker is open in {kafka_topic}, partition {partition}"
        return ""

    def _kafka_topic(self, role: str) -> str:
        return self._names.topic(self._topic, role)

    def _note(self, partition: int) -> str | None:
        """The metadata that the workers' group has committed with its offset of a partition."""
        source = self._kafka_topic("publish")
        return patiently(
            lambda: self._reader.committed_with_note(source, partition, _ASK_TIMEOUT_S)[1],
            f"asking about partition {partition} of {source}",
        )
