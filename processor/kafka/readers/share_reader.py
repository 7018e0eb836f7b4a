"""Reads a queue topic as a member of a share group: each record is leased to one member at a time (KIP-932).

librdkafka calls its share consumer a preview. It fetches at `poll` only, and wants an outcome for each record of a poll
before the next one, which also carries the outcomes to the broker.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaException, ShareConsumer

from processor.kafka import errors as kafka_errors
from processor.kafka import outage, properties
from processor.kafka.message import records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import TopicPartition

    from processor.record import Record

Verdict: TypeAlias = Literal["accept", "release", "reject"]
"""The outcome of a delivery: done; to be delivered again, to any member; never to be delivered again."""

Place: TypeAlias = tuple[int, int]
"""Partition number and offset of a record."""

_TYPES: Final = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}
_COMMIT_TIMEOUT_S: Final = 10.0


class Lease(NamedTuple):
    """A record that this member holds."""

    partition: int
    """The partition of the queue topic."""
    record: Record
    """The record."""
    deliveries: int
    """Number of deliveries, this one included."""
    since_s: float
    """A time before Kafka leased it to us, by the monotonic clock."""


class ShareReader:
    """A member of a share group that reads one topic. One thread at a time."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        group: str,
        topic: str,
        leases_max: int,
        on_lost: Callable[[Sequence[Place], str], None],
    ) -> None:
        """Join a group.

        Args:
            kafka: librdkafka properties.
            group: the share group.
            topic: the queue topic.
            leases_max: how many records one poll returns, about.
            on_lost: called with the places whose outcome Kafka did not take, and the reason: they are delivered again.

        Raises:
            Stop: Kafka's client refuses.
        """
        self._topic = topic
        self._on_lost = on_lost
        try:
            self._consumer = ShareConsumer(properties.share_member(kafka, group=group, records_max=leases_max))
            self._consumer.set_acknowledgement_commit_callback(self._committed)
            self._consumer.subscribe([topic])
        except KafkaException as error:
            raise kafka_errors.stop(error, f"joining the share group {group}") from error
        self._asked_s: float | None = None  # When the fetch was asked for whose records have not come.

    def poll(self, timeout_s: float) -> list[Lease]:
        """Send the outcomes since the last poll, and return the next records; every earlier one has an outcome.

        Raises:
            Stop: the queue cannot be read on.
        """
        # A fetch may be answered after a poll that found nothing: its records were leased since that poll.
        since_s = time.monotonic() if self._asked_s is None else self._asked_s
        try:
            messages = list(self._consumer.poll(timeout_s))
        except KafkaException as error:
            # As while the coordinator of the group's state is new, or moves: librdkafka asks again.
            if not kafka_errors.passes(kafka_errors.of(error)):
                raise kafka_errors.stop(error, f"reading {self._topic}") from error
            messages = []
        self._asked_s = None if messages else max(since_s, time.monotonic() - timeout_s - 1.0)
        leases = []
        for message in messages:
            problem = message.error()
            if problem is None:
                [record] = records([message])
                leases.append(Lease(message.partition() or 0, record, message.delivery_count() or 1, since_s))
            elif not kafka_errors.passes(problem):
                raise kafka_errors.stop(problem, f"reading {self._topic}")
        if leases:
            outage.reached()
        return leases

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        """Decide about a record; Kafka learns of it with the next `poll`, `send` or `close`."""
        place = lease.partition, lease.record.offset
        try:
            self._consumer.acknowledge_offset(self._topic, *place, _TYPES[verdict])
        except IllegalStateException as error:
            self._on_lost([place], str(error))  # It left our hands meanwhile, as by a new session.

    def send(self, *, waits: bool = False) -> None:
        """Send the outcomes now.

        Args:
            waits: whether to wait for Kafka's answer. Outcomes of leases that have ended must not go together with
                others: Kafka refuses all of a partition for one that it cannot take.

        Raises:
            Stop: Kafka refuses.
        """
        try:
            if waits:
                self._consumer.commit_sync(_COMMIT_TIMEOUT_S)
            else:
                self._consumer.commit_async()
        except KafkaException as error:
            # While Kafka is away, leases go on; the callback reports the outcomes that it does not take.
            if not kafka_errors.passes(kafka_errors.of(error)):
                raise kafka_errors.stop(error, f"acknowledging messages of {self._topic}") from error

    def close(self) -> None:
        """Send the outcomes, and leave the group: records without one are available to other members at once."""
        try:
            self._consumer.close()
        except KafkaException as error:
            raise kafka_errors.stop(error, f"leaving the share group of {self._topic}") from error

    def _committed(self, offsets: Mapping[TopicPartition, set[int]], error: KafkaException | None) -> None:
        """Report the outcomes that Kafka did not take."""
        if error is not None:
            places = [(place.partition, offset) for place, its_offsets in offsets.items() for offset in its_offsets]
            self._on_lost(places, kafka_errors.of(error).str())
