"""One exclusive move of a topic's merge between its workers and Spark: a lease, and the writer of the fence.

The *lease* is membership in the consumer group `<application_id>@spark.<topic>.move`. A second command is refused as
long as the first one lives, and goes on in its place once it is dead. `processor.repair.fenced_move` keeps out a
process that was only thought dead. Together with the fence, in one transaction, a move writes the input positions of
the mark topic and the offsets of the workers' group.

While the fence is up, the positions are those of the application `<application_id>@spark`. So a worker that is older
than the fence holds its partitions, too, and merges nothing.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, Stop
from processor.installation.control_topic import ControlEntries, ControlTopic
from processor.installation.hold import who
from processor.kafka.admin.admin import Admin
from processor.repair.fenced_move import NO_FENCE, FencedMove
from processor.store.marks import POSITION_NAME
from processor.wire.control import SPARK, WORKERS, Fence
from processor.wire.partition_marks import InputPosition
from spark_integration.foundation.options import client_properties
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.moves.presence import SESSION_TIMEOUT_S, Presence, members
from spark_integration.merge.topic_family import TopicFamily, sparks_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from processor.record import Outgoing
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import Settings, TopicSettings

TO_SPARK: Final = "to_spark"
"""The workers are to leave; nothing else has changed."""
BEGINNING: Final = "beginning"
"""The workers are gone, and Spark loads their records."""
TO_WORKERS: Final = "to_workers"
"""Spark is to stop, and writes the rest of its last micro-batch."""

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
        self.family: TopicFamily
        """The topics, and the workers' group."""
        self.lease: Presence
        """Shows other commands that this one lives."""
        self._session_timeout_s = session_timeout_s
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Get the lease, fence earlier writers, and read the fence.

        Raises:
            ConfigurationError: another move is under way, there is no control topic, or the input topic was deleted and
                created again.
            Stop: Kafka refuses, or does not answer.
        """
        with self._resources as resources:
            self.family = resources.enter_context(TopicFamily(self.settings, self.kafka))
            settings = self.settings
            self._fenced = FencedMove(
                self.kafka,
                settings.names,
                settings.application_id,
                settings.name,
                settings.topic.partitions,
                group=self.family.group,
                command=self.command,
                producer="move",
                transaction_timeout_s=_TRANSACTION_TIMEOUT_S,
                remedy="Stop the workers, then run the same command again",
            )
            self._fenced.control.refuse_missing()
            self.lease = resources.enter_context(self.presence(move_group(settings)))
            self.lease.refuse_others(f"moves {settings.name} already: let it end")
            resources.enter_context(self._fenced)
            self._refuse_recreated()
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def fence(self) -> Fence:
        """The fence as it was last read or written."""
        return self._fenced.fence

    def presence(self, group: str) -> Presence:
        """A membership that shows others that this command lives."""
        return Presence(
            self.kafka,
            group=group,
            topic=self._fenced.control.topic,
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
        records = self._positions(fence) if moves_positions else []
        self._fenced.write(fence, records, fence.offsets if moves_positions and phase == WORKERS else None)

    def topic_id(self) -> str:
        """Kafka's id of the input topic."""
        return self.family.admin.topic_id(self.family.source)

    def _refuse_recreated(self) -> None:
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

    def _positions(self, fence: Fence) -> list[tuple[str, int, list[Outgoing]]]:
        settings = self.settings
        application_id = settings.application_id if fence.phase == WORKERS else sparks_id(settings)
        return [
            (
                settings.kafka_topic("mark"),
                partition,
                [(POSITION_NAME, bytes(InputPosition(application_id, fence.topic_id, offset)), [])],
            )
            for partition, offset in fence.offsets.items()
        ]

    def await_workers(self, timeout_s: float) -> dict[int, int]:
        """Wait until the workers are gone, as `FencedMove.await_workers`; returns their group's offsets.

        A partition without an offset begins at the oldest record kept, as for workers.
        """
        self._fenced.await_workers(timeout_s)
        partitions = self.settings.topic.partitions
        committed, oldest = self.family.committed(partitions), self.family.bounds("publish", partitions).begins
        return {partition: committed.get(partition, oldest[partition]) for partition in range(partitions)}

    def await_spark(self, timeout_s: float) -> None:
        """Wait until no process on Spark merges the topic.

        Raises:
            Stop: it has not ended in time; the message names it.
        """
        deadline_s = time.monotonic() + timeout_s
        group = merge_group(self.settings)
        while those := members(self.family.admin, group, self._fenced.control.topic):
            if time.monotonic() > deadline_s:
                raise Stop(
                    f"{self.command} {self.settings.name}: after {timeout_s:g} s {those[0]} still merges on "
                    "Spark. Stop it, then run the same command again"
                )
            time.sleep(_LOOK_S)


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


def merge_group(settings: TopicSettings) -> str:
    """The consumer group whose member merges the topic on Spark; it commits no offsets."""
    return f"{settings.names.prefix}{sparks_id(settings)}.{settings.name}"


def move_group(settings: TopicSettings) -> str:
    """The consumer group whose member moves the merge."""
    return f"{merge_group(settings)}.move"
