"""Writes records without a transaction: what publishers do. Sending waits for room, failures are never silent."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from processor.errors import BrokerUnavailable, RecordRejected, Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.topics.family import MESSAGE_MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Message

    from processor.record import Headers

Delivered: TypeAlias = "Callable[[Stop | None], None]"
"""Told once for each record, with None when Kafka has it, or with what went wrong."""

CHOSEN_BY_KEY: Final = -1
"""The key's hash chooses the partition: librdkafka's RD_KAFKA_PARTITION_UA."""

_ROOM_WAIT_S = 0.05
_FLUSH_SLICE_S = 0.1


class Publisher:
    """One idempotent producer: the order within a partition is kept, nothing is sent twice.

    All may be called from several threads. Delivery callbacks run within `send`, `flush`, `serve` and `wait_for_room`.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._producer = Producer(properties.producer(kafka))
        self._failures = 0
        self._first_failure: Stop | None = None
        # Held while another thread than a sender tells of deliveries. A callback may flush.
        self._serving = threading.RLock()

    @property
    def pending(self) -> int:
        """Records sent that Kafka has not acknowledged yet."""
        return len(self._producer)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        on_delivery: Delivered | None = None,
        *,
        partition: int | None = None,
    ) -> None:
        """Hand a record over, to a partition if one is named. Waits while the queue to the broker is full.

        Raises:
            RecordRejected: `too_large`: Kafka would not take it.
            Stop: the producer cannot go on.
        """
        chosen = CHOSEN_BY_KEY if partition is None else partition
        while not self.try_send(topic, key, value, headers, on_delivery, partition=chosen):
            self.wait_for_room()
        self._producer.poll(0)

    def try_send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        on_delivery: Delivered | None = None,
        *,
        partition: int = CHOSEN_BY_KEY,
    ) -> bool:
        """Hand a record over, to a partition if one is named; False if the queue is full. No callback runs.

        Raises:
            RecordRejected: `too_large`: Kafka would not take it.
            Stop: the producer cannot go on.
        """
        if value is not None and len(value) > MESSAGE_MAX_BYTES:
            raise RecordRejected("too_large", f"{len(value)} bytes; Kafka takes at most {MESSAGE_MAX_BYTES}")
        told = self._note if on_delivery is None else partial(_tell, topic, on_delivery)
        produce: Callable[..., None] = self._producer.produce
        try:
            produce(topic, value, key, partition, headers=headers, on_delivery=told)
        except BufferError:
            return False
        except KafkaException as error:
            raise kafka_errors.stop(error, f"publishing to {topic}") from error
        return True

    def wait_for_room(self) -> None:
        """Wait a moment for the queue to the broker to move."""
        self._producer.poll(_ROOM_WAIT_S)

    def serve(self) -> None:
        """Tell of deliveries that nobody has been told of yet, unless another thread is at it."""
        # Not to wait for it: its callback may wait for the acks that this thread brings.
        if self._serving.acquire(blocking=False):
            try:
                self._producer.poll(0)
            finally:
                self._serving.release()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until Kafka has everything that was sent.

        Raises:
            BrokerUnavailable: something was not acknowledged in time; it is still being tried.
            Stop: records sent without their own `on_delivery` failed since the last flush; the first one says why.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # In slices, so that Ctrl-C is heard.
        while left := self._producer.flush(_FLUSH_SLICE_S):
            if deadline is not None and time.monotonic() >= deadline:
                raise BrokerUnavailable(
                    f"Kafka has not acknowledged {left} records within {timeout_s:g} s; flush again to wait on, "
                    "`sowstream doctor` looks closer"
                )
        with self._serving:  # What another thread is just telling is told.
            pass
        count, first = self._failures, self._first_failure
        self._failures, self._first_failure = 0, None
        if first is not None:
            raise first if count == 1 else type(first)(f"{count} records were not delivered; the first: {first}")

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures += 1
            self._first_failure = self._first_failure or _explained(error, message.topic())


def _tell(topic: str, on_delivery: Delivered, error: KafkaError | None, _: Message) -> None:
    on_delivery(None if error is None else _explained(error, topic))


def _explained(error: KafkaError, topic: str | None) -> Stop:
    return kafka_errors.stop(error, f"publishing to {topic}")
