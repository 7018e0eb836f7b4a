"""Reads an input topic as a member of a consumer group; the caller gives every start offset."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Protocol, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from processor.errors import PartitionHeld, TransactionAborted
from processor.kafka import errors as kafka_errors
from processor.kafka import outage, properties
from processor.kafka.clients.stall_watch import StallWatch
from processor.kafka.message import Message, readable_records, with_readable_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Record

_OLDEST_TIMEOUT_S = 2.0
_RELEASE_TRY_S = 1.0
_RELEASE_PATIENCE_S = 120.0  # Brokers keep a silent member of the new protocol for 45 s by default, and 60 s at most.


class AssignmentListener(Protocol):
    """The owner of the assigned partitions. Called from within `poll`, on its thread."""

    def on_assigned(self, partitions: list[int]) -> None:
        """Called when these partitions were assigned to us; nothing is read until `begin`."""

    def on_revoked(self, partitions: list[int]) -> None:
        """Called when these partitions go to another member once this returns: commit or abort."""

    def on_lost(self, partitions: list[int]) -> None:
        """Called when another member has these partitions already: abort."""


class GroupConsumer:
    """A member of a group that reads one topic. One thread only."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        group: str,
        topic: str,
        session_timeout_s: float,
        listener: AssignmentListener,
        instance: str | None = None,
        prefetch_bytes: int | None = None,
        rebuild_steps: str = "",
    ) -> None:
        """Join a group.

        Args:
            kafka: librdkafka properties, `group.protocol` included.
            group: the consumer group.
            topic: the input.
            session_timeout_s: how long the group keeps a silent member.
            listener: the owner of the assigned partitions.
            instance: the name of a static member, which does not leave the group and gets its partitions back.
            prefetch_bytes: input that may wait in memory; None: the limit of every reader.
            rebuild_steps: the steps after the topic was recreated, if resetting offsets is not enough.
        """
        self.topic = topic
        self.ended: dict[int, int] = {}
        """By partition without a further record for now, as far as Kafka has reported: the offset of its end."""
        self.unreadable: dict[int, PartitionHeld] = {}
        """The partitions that cannot be read on, with the reason; they are paused until `begin`."""
        self._listener = listener
        self._rebuild_steps = rebuild_steps
        self._group = group
        self._properties = properties.group_member(
            kafka, group=group, session_timeout_s=session_timeout_s, instance=instance, prefetch_bytes=prefetch_bytes
        )
        self._stalls = StallWatch(kafka, group=group, topic=topic)
        self._unreleased_s: float | None = None  # Since when the group has kept our name for another process.
        self._join()

    def poll(self, records_max: int, timeout_s: float) -> list[Message]:
        """The next messages, of all partitions begun. The listener is called from here.

        Partitions that cannot be read on are left to `unreadable`; the messages of the others are returned.

        Raises:
            Stop: the input cannot be read on; the text has the reason.
        """
        for partition, trouble in self._stalls.look(self._consumer, self.ended).items():
            self._hold(partition, trouble)
        try:
            messages = self._consumer.consume(records_max, timeout_s)
        except KafkaException as error:
            raise kafka_errors.stop(error, f"reading {self.topic}") from error
        with_readable_headers(messages)
        for message in messages:
            if message.error() is not None:
                return self._without_events(messages)
        if messages:
            outage.reached()
        if self.ended:
            for partition in {cast("int", message.partition()) for message in messages}:
                self.ended.pop(partition, None)
        return messages

    def begin(self, partition: int, offset: int) -> None:
        """Start reading a partition at an offset.

        Raises:
            TransactionAborted: the partition is not ready, or not ours any more; try again.
        """
        self.ended.pop(partition, None)
        self.unreadable.pop(partition, None)
        if (trouble := self._stalls.begin(partition, offset)) is not None:
            self._hold(partition, trouble)
            return
        position = TopicPartition(self.topic, partition, offset)
        try:
            try:
                self._consumer.seek(position)
            except KafkaException as error:
                if kafka_errors.of(error).code() != KafkaError._STATE:
                    raise
                # librdkafka has stopped at an offset that does not exist, as one that a record falsely says it has.
                self._consumer.incremental_unassign([position])
                self._consumer.incremental_assign([position])
            self._consumer.resume([position])
        except KafkaException as error:
            where = f"{self.topic} partition {partition} at offset {offset}"
            raise TransactionAborted(f"beginning {where}: {kafka_errors.of(error).str()}") from error

    def records(self, partition: int, messages: list[Message]) -> list[Record]:
        """Convert messages of one partition, up to the first one that cannot be; there the partition is unreadable."""
        if not messages:
            return []
        place = TopicPartition(self.topic, partition)
        _, end = self._consumer.get_watermark_offsets(place, cached=True)
        if end < 0:  # A fetch behind a record with a false offset has failed since.
            with contextlib.suppress(KafkaException):
                end = self._consumer.get_watermark_offsets(place, _OLDEST_TIMEOUT_S)[1]
        converted, problem = readable_records(messages, end)
        if problem:
            # The client may have gone on behind a false offset, and found nothing there: this is the cause.
            self.unreadable.pop(partition, None)
            self._hold(partition, PartitionHeld("unreadable_batch", f"{self.topic} partition {partition}: {problem}"))
        return converted

    def pause(self, partition: int) -> None:
        """Stop reading a partition until `begin`."""
        self._forget(partition)
        self._consumer.pause([TopicPartition(self.topic, partition)])

    def lag(self, partition: int, offset: int) -> int:
        """The number of offsets between an input position and the end, as far as it is known without a request."""
        if partition in self.ended:
            # The end may lie behind a transaction's marker; no position passes it before the next record arrives.
            return 0
        _, end = self._consumer.get_watermark_offsets(TopicPartition(self.topic, partition), cached=True)
        return max(0, end - offset)

    def member_id(self) -> str:
        """Our member id; empty while we are no member. It asks librdkafka's thread: too slow for every turn."""
        return self._consumer.memberid() or ""

    def group_metadata(self) -> Any:
        """The proof for a transaction that we are still a member."""
        return self._consumer.consumer_group_metadata()

    def commit(self, offsets: Mapping[int, int], notes: Mapping[int, str]) -> None:
        """Commit the next input offset of each partition, with offset metadata, without a transaction.

        Raises:
            TransactionAborted: the commit failed, or its outcome is unknown, as when we are no member any more.
        """
        places = [
            TopicPartition(self.topic, partition, offset, metadata=notes[partition])
            for partition, offset in offsets.items()
        ]
        if not places:
            return
        try:
            done = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise kafka_errors.of_commit(error, f"committing offsets of {self.topic}") from error
        for place in done or ():
            if place.error is not None:
                raise kafka_errors.of_commit(KafkaException(place.error), f"committing offsets of {self.topic}")

    def close(self) -> None:
        """Leave the group. The listener's `on_revoked` is called from here."""
        self._consumer.close()

    def _without_events(self, messages: list[Message]) -> list[Message]:
        """The records among messages; ends are noted, and an event that ends the reading is raised."""
        records = []
        for message in messages:
            error, partition = message.error(), cast("int", message.partition())
            if error is None:
                records.append(message)
                self.ended.pop(partition, None)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended[partition] = cast("int", message.offset())
                outage.reached()
            elif kafka_errors.is_out_of_range(error) or kafka_errors.is_unreadable(error):
                self._hold(partition, self._trouble(message, error))
            elif kafka_errors.is_unreleased(error):
                self._rejoin(error)
                return []
            elif not kafka_errors.passes(error):
                is_of_group = message.topic() is None
                raise kafka_errors.stop(
                    error, f"joining the group {self._group}" if is_of_group else f"reading {self.topic}"
                )
            else:
                if error.code() == KafkaError._ALL_BROKERS_DOWN:
                    outage.unreachable(f"reading {self.topic}")
                properties.log.warning("reading %s: %s; going on", self.topic, error.str())
        return records

    def _trouble(self, message: Message, error: KafkaError) -> PartitionHeld:
        """The reason why a partition cannot be read on."""
        trouble = kafka_errors.of_partition(error, self.topic, message.partition(), message.offset())
        if isinstance(trouble, PartitionHeld):
            return trouble
        was_recreated = f", or it was deleted and made anew: then {self._rebuild_steps}" if self._rebuild_steps else ""
        return PartitionHeld(
            "input_gone",
            f"{self.topic} partition {message.partition()}: records that were not processed yet are gone "
            f"({error.str()}). The topic's retention is too short for this outage{was_recreated}; nothing is skipped "
            "silently: stop the workers, then sowstream offsets adopt TOPIC --from earliest goes on",
        )

    def _hold(self, partition: int, trouble: PartitionHeld) -> None:
        """Stop reading a partition: librdkafka would fetch the same batch again and again."""
        self.unreadable.setdefault(partition, trouble)
        self._stalls.end(partition)
        with contextlib.suppress(KafkaException):  # Not ours any more.
            self._consumer.pause([TopicPartition(self.topic, partition)])

    def _join(self) -> None:
        self._consumer = Consumer(self._properties)
        self._consumer.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _rejoin(self, error: KafkaError) -> None:
        """Wait for our own name: the group keeps it for our predecessor until its session is over.

        The new protocol refuses the new member; the classic one fences the old.
        """
        now_s = time.monotonic()
        if self._unreleased_s is None:
            self._unreleased_s = now_s
            properties.log.warning("joining the group of %s: %s; waiting for it", self.topic, error.str())
        if now_s - self._unreleased_s > _RELEASE_PATIENCE_S:
            raise kafka_errors.stop(error, f"joining the group of {self.topic} for {_RELEASE_PATIENCE_S:g} s")
        self._consumer.close()
        time.sleep(_RELEASE_TRY_S)
        self._join()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._unreleased_s = None
        consumer.incremental_assign(self._oldest(consumer, partitions))
        consumer.pause(partitions)
        self._listener.on_assigned([partition.partition for partition in partitions])

    def _oldest(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """An offset that exists in each partition; the partition stays paused there until `begin`.

        A fetch may leave before the pause takes effect, and fails for an offset that retention has deleted. If
        librdkafka looks up the beginning itself, its answer may arrive late and undo the seek of `begin`.
        """
        beginnings = [TopicPartition(self.topic, partition.partition, OFFSET_BEGINNING) for partition in partitions]
        try:
            places = consumer.offsets_for_times(beginnings, _OLDEST_TIMEOUT_S) if beginnings else []
        except KafkaException as error:
            properties.log.warning("asking for the beginning of %s: %s", self.topic, kafka_errors.of(error).str())
            places = beginnings
        return [TopicPartition(self.topic, place.partition, max(0, place.offset)) for place in places]

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._listener.on_revoked([partition.partition for partition in partitions])
        self._give_up(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._listener.on_lost([partition.partition for partition in partitions])
        self._give_up(consumer, partitions)

    def _forget(self, partition: int) -> None:
        self.ended.pop(partition, None)
        self.unreadable.pop(partition, None)
        self._stalls.end(partition)

    def _give_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            self._forget(place.partition)
        try:
            consumer.incremental_unassign(partitions)
        except KafkaException as error:
            # The member was fenced and has no assignment left to shrink.
            properties.log.warning("giving up partitions of %s: %s", self.topic, kafka_errors.of(error).str())
