"""One exclusive move of a topic's merge: its lease, the fence that all engines heed, and the writer of the fence.

Three parts of Kafka keep two moves apart:

- The *lease* is membership in the consumer group `<application_id>@spark.<topic>.move`. A second command is refused as
  long as the first one lives, and goes on in its place once it is dead.
- The *writer* is a transactional producer with one id for each topic. The fence is read after the producer has
  started, which fences every earlier one: a process that was only thought dead cannot write any more.
- The *fence* is a record of the control topic. Together with it, in one transaction, a move writes the input
  positions of the mark topic and the offsets of the workers' group.

While the fence is up, it is also a mark in each partition of the mark topic, and the positions are those of the
application `<application_id>@spark`. So a worker that cannot read the control topic, or is older than it, holds its
partitions and merges nothing.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, Stop, TransactionAborted
from processor.installation.control_topic import ControlEntries, ControlTopic, fence_mark
from processor.installation.hold import who
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.store.marks import POSITION_NAME
from processor.wire.control import ALL_PARTITIONS, OF_SPARK, SPARK, WORKERS, Fence, Key
from processor.wire.partition_marks import InputPosition
from spark_integration.merge.moves.presence import SESSION_TIMEOUT_S, Presence, members
from spark_integration.merge.topic_family import TopicFamily
from spark_integration.options import client_properties
from spark_integration.settings import topic_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from processor.kafka.admin.groups import Member
    from spark_integration.options import Options
    from spark_integration.settings import Settings, TopicSettings

TO_SPARK: Final = "to_spark"
"""The workers are to leave; nothing else has changed."""
BEGINNING: Final = "beginning"
"""The workers are gone, and Spark loads their records."""
TO_WORKERS: Final = "to_workers"
"""Spark is to stop, and writes the rest of its last micro-batch."""

NO_FENCE: Final = Fence(at_ms=0, phase=WORKERS, number=0)
"""The fence of a topic that workers merge, and that was never moved."""

_TRANSACTION_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.3


class Move:
    """The right to move the merge of one topic; leave its `with` to give it back. One thread only."""

    def __init__(
        self,
        settings: TopicSettings,
        kafka: Mapping[str, str],
        command: str,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> None:
        """Set up without connecting.

        Args:
            settings: the settings of the topic.
            kafka: librdkafka properties.
            command: the name of the command, for messages.
            session_timeout_s: time until another command may go on in the place of this one after its death.
        """
        self.settings, self.kafka, self.command = settings, kafka, command
        self.fence: Fence
        """The fence as it was last read or written."""
        self.family: TopicFamily
        """The topics, and the workers' group."""
        self.lease: Presence
        """Shows other commands that this one lives."""
        self._session_timeout_s = session_timeout_s
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Get the lease, fence earlier writers, and read the fence.

        Raises:
            ConfigurationError: another move is under way, or there is no control topic.
            Stop: Kafka refuses, or does not answer.
        """
        with self._resources as resources:
            self.family = resources.enter_context(TopicFamily(self.settings, self.kafka))
            self._control = ControlTopic(self.kafka, self.family.admin, prefix=self.settings.names.prefix)
            refuse_missing(self._control, self.family.admin)
            self.lease = resources.enter_context(self.presence(move_group(self.settings)))
            self.lease.refuse_others(f"moves {self.settings.name} already: let it end")
            self._producer = TransactionalProducer(
                self.kafka,
                transactional_id=f"{self.family.group}.move",
                transaction_timeout_s=_TRANSACTION_TIMEOUT_S,
            )
            resources.callback(self._producer.close)
            self._producer.start()
            # Only now: no other process can write it any more, and a transaction that a dead one left is over.
            entries = read_control(self._control, self.settings)
            fence = self._control.fence(entries, self.settings.name, self.settings.kafka_topic("mark"))
            self.fence = fence or NO_FENCE
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def presence(self, group: str) -> Presence:
        """A membership that shows others that this command lives."""
        return Presence(
            self.kafka,
            group=group,
            topic=self._control.topic,
            role=f"{self.command} {self.settings.name}",
            session_timeout_s=self._session_timeout_s,
        )

    def write(
        self,
        phase: str,
        *,
        offsets: Mapping[int, int] | None = None,
        checkpoint: str | None = None,
        number: int | None = None,
        moves_positions: bool = False,
    ) -> None:
        """Write a new phase of the fence.

        Args:
            phase: the phase.
            offsets: the next input offset of each partition; None: as before.
            checkpoint: the checkpoint of Spark's query; None: as before.
            number: the number of the move to Spark; None: as before.
            moves_positions: write the offsets as the input positions too, of the workers in the phase `workers`, else
                of Spark; and in the phase `workers` as the offsets of their group. All in one transaction.

        Raises:
            Stop: another process has taken the move over, or Kafka refuses; the fence is as it was, or its state is
                not known: repeat the command.
        """
        fence = Fence(
            at_ms=int(time.time() * 1000),
            phase=phase,
            number=self.fence.number if number is None else number,
            checkpoint=self.fence.checkpoint if checkpoint is None else checkpoint,
            topic_id=self.topic_id() if moves_positions else self.fence.topic_id,
            offsets=dict(self.fence.offsets if offsets is None else offsets),
            has_begun=phase == SPARK or (phase == TO_WORKERS and self.fence.has_begun),
            by=who(),
        )
        key = Key("fence", self.settings.application_id, self.settings.name, ALL_PARTITIONS)
        committed: Mapping[int, int] = {}
        try:
            self._producer.send(self._control.topic, 0, [(key.encode(), fence.encode(), [])])
            for partition in range(self.settings.topic.partitions):
                self._producer.send(self.settings.kafka_topic("mark"), partition, [fence_mark(fence)])
            if moves_positions:
                self._send_positions(fence)
                committed = fence.offsets if phase == WORKERS else {}
            self._producer.commit(self.family.source, committed, self.family.group_metadata())
        except TransactionAborted as error:
            raise Stop(
                f"{self.command} {self.settings.name}: phase {phase!r} could not be written, perhaps because another "
                f"process has taken over: {error}. Run the same command again"
            ) from error
        self.fence = fence

    def topic_id(self) -> str:
        """Kafka's id of the input topic."""
        return self.family.admin.topic_id(self.family.source)

    def refuse_recreated(self) -> None:
        """Make sure that the input topic is the one that the fence was raised for.

        Raises:
            ConfigurationError: it was deleted and created again.
        """
        if self.fence.topic_id and self.fence.topic_id != (now := self.topic_id()):
            raise ConfigurationError(
                f"{self.family.source} was deleted and created again (id {self.fence.topic_id}, now {now}): the "
                f"offsets of the fence mean nothing in it. Create all topics of {self.settings.name} again, under "
                "another application_id"
            )

    def _send_positions(self, fence: Fence) -> None:
        settings = self.settings
        application_id = settings.application_id if fence.phase == WORKERS else sparks_id(settings)
        for partition, offset in fence.offsets.items():
            position = InputPosition(application_id, fence.topic_id, offset)
            self._producer.send(settings.kafka_topic("mark"), partition, [(POSITION_NAME, bytes(position), [])])

    def await_workers(self, timeout_s: float) -> dict[int, int]:
        """Wait until no worker is in the group and no transaction is open; returns the group's offsets.

        A partition without an offset begins at the oldest record kept, as for workers.

        Raises:
            Stop: they have not left in time; the message names one. Or one died without a transaction, so that the SOW
                topic has records of input behind its offset.
        """
        family, deadline_s = self.family, time.monotonic() + timeout_s
        while reason := self._busy():
            if time.monotonic() > deadline_s:
                raise Stop(
                    f"{self.command} {self.settings.name}: after {timeout_s:g} s {reason}. Stop the workers, then run "
                    "the same command again"
                )
            time.sleep(_LOOK_S)
        partitions = self.settings.topic.partitions
        self._refuse_uncommitted(partitions)
        committed, oldest = family.committed(partitions), family.bounds("publish", partitions).begins
        return {partition: committed.get(partition, oldest[partition]) for partition in range(partitions)}

    def _refuse_uncommitted(self, partitions: int) -> None:
        """Make sure that workers without transactions have committed the offsets of all their records.

        Raises:
            Stop: one died before that; only workers recognise the records that are delivered to them again.
        """
        ends = self.family.bounds("sow", partitions).ends
        for partition, metadata in self.family.commit_notes(partitions).items():
            if metadata.ends is not None and metadata.ends.sow < ends[partition]:
                raise Stop(
                    f"{self.command} {self.settings.name}: a worker without transactions (guarantee: at_least_once) "
                    f"died before it committed its offset in partition {partition}: its last records would be merged "
                    "twice. Start a worker, let it catch up, and run the same command again"
                )

    def _busy(self) -> str:
        """The reason why the workers are not gone yet; empty once they are."""
        family = self.family
        if those := members(family.admin, family.group, family.source):
            return f"the group {family.group} still has members, such as {shown(those[0])}"
        for role in ("sow", "delta", "mark"):
            partitions = family.partitions(role)
            stable = family.bounds(role, partitions).ends
            ends = family.admin.end_offsets(self.settings.kafka_topic(role), range(partitions))
            if unstable := [partition for partition, end in ends.items() if stable[partition] < end]:
                return f"a transaction of a dead worker is open in {self.settings.kafka_topic(role)}, {unstable[0]}"
        return ""

    def await_spark(self, timeout_s: float) -> None:
        """Wait until no process on Spark merges the topic.

        Raises:
            Stop: it has not ended in time; the message names it.
        """
        deadline_s = time.monotonic() + timeout_s
        group = merge_group(self.settings)
        while those := members(self.family.admin, group, self._control.topic):
            if time.monotonic() > deadline_s:
                raise Stop(
                    f"{self.command} {self.settings.name}: after {timeout_s:g} s {shown(those[0])} still merges on "
                    "Spark. Stop it, then run the same command again"
                )
            time.sleep(_LOOK_S)


def refuse_missing(control: ControlTopic, admin: Admin) -> None:
    """Make sure that there is a control topic.

    Raises:
        ConfigurationError: there is none.
        Stop: Kafka refuses, or does not answer.
    """
    if admin.partitions_of(control.topic) is None:
        raise ConfigurationError(
            f"the topic {control.topic} does not exist, which shows workers that Spark merges: run `sowstream topics "
            "apply`, and restart workers that are older than it"
        )


def read_control(control: ControlTopic, settings: TopicSettings) -> ControlEntries:
    """Read the records of an application in the control topic, which exists.

    Raises:
        Stop: Kafka refuses, or does not answer, or a command died a moment ago in the middle of a transaction.
    """
    entries = control.read(settings.application_id)
    assert entries is not None, "it exists"
    return entries


def fence_in(entries: ControlEntries, settings: TopicSettings) -> Fence:
    """The fence of a topic; without a record it is down, and no move has been made."""
    return entries.fences.get(settings.name, NO_FENCE)


def current_fence(topic: str, config: Settings, options: Options) -> Fence:
    """Read the fence of a topic; without a control topic it is down.

    Args:
        topic: the family's name.
        config: its settings.
        options: options of Spark's Kafka source.

    Raises:
        Stop: Kafka refuses, or does not answer.
    """
    settings = topic_settings(topic, config, options=options)
    kafka = client_properties(settings.kafka, options)
    entries = ControlTopic(kafka, Admin(kafka), prefix=settings.names.prefix).read(settings.application_id)
    return NO_FENCE if entries is None else fence_in(entries, settings)


def sparks_id(settings: TopicSettings) -> str:
    """The application id of input positions while Spark merges; no settings can have it, because of the `@`."""
    return f"{settings.application_id}{OF_SPARK}"


def merge_group(settings: TopicSettings) -> str:
    """The consumer group whose member merges the topic on Spark; it commits no offsets."""
    return f"{settings.names.prefix}{sparks_id(settings)}.{settings.name}"


def move_group(settings: TopicSettings) -> str:
    """The consumer group whose member moves the merge."""
    return f"{merge_group(settings)}.move"


def shown(member: Member) -> str:
    """A member of a group, for messages."""
    return f"{member.client_id} at {member.host}"
