"""Writes records without a transaction, for publishers. Sending waits for room; failures are never silent."""

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
"""Called once for each record: with None when Kafka has it, or with the error."""

CHOSEN_BY_KEY: Final = -1
"""The partition number that lets the key's hash choose: librdkafka's RD_KAFKA_PARTITION_UA."""

_ROOM_WAIT_S = 0.05
_FLUSH_SLICE_S = 0.1


class Publisher:
    """An idempotent producer: it keeps the order within a partition, and sends no record twice.

    All methods may be called from several threads. Delivery callbacks run within `send`, `flush`, `serve` and
    `wait_for_room`.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._producer = Producer(properties.producer(kafka))
        self._last_topic = ""
        self._failures = 0
        self._first_failure: Stop | None = None
        # Held while a thread that is not sending runs delivery callbacks. A callback may flush.
        self._serving = threading.RLock()

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
        """Queue a record, for a partition if one is given. Waits while the queue to the broker is full.

        Raises:
            RecordRejected: `too_large`: Kafka would not accept it.
            Stop: the producer cannot go on.
        """
        number = CHOSEN_BY_KEY if partition is None else partition
        while not self.try_send(topic, key, value, headers, on_delivery, partition=number):
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
        """Queue a record, for a partition if one is given; False if the queue is full. No callback runs.

        Raises:
            RecordRejected: `too_large`: Kafka would not accept it.
            Stop: the producer cannot go on.
        """
        if value is not None and len(value) > MESSAGE_MAX_BYTES:
            raise RecordRejected("too_large", f"{len(value)} bytes; Kafka takes at most {MESSAGE_MAX_BYTES}")
        callback = self._note if on_delivery is None else partial(_report, topic, on_delivery)
        produce: Callable[..., None] = self._producer.produce
        self._last_topic = topic
        try:
            produce(topic, value, key, partition, headers=headers, on_delivery=callback)
        except BufferError:
            return False
        except KafkaException as error:
            raise kafka_errors.stop(error, f"publishing to {topic}") from error
        return True

    def wait_for_room(self) -> None:
        """Wait a moment for the queue to the broker to move."""
        self._producer.poll(_ROOM_WAIT_S)

    def serve(self) -> None:
        """Run the delivery callbacks that are due, unless another thread is doing so."""
        # No waiting for that thread: its callback may wait for the acks that this one brings.
        if self._serving.acquire(blocking=False):
            try:
                self._producer.poll(0)
            finally:
                self._serving.release()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until Kafka has everything that was sent.

        Raises:
            BrokerUnavailable: something was not acknowledged in time; it is still being tried.
            Stop: records sent without their own `on_delivery` failed since the last flush; it has the reason of the
                first.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # In slices, so that Ctrl-C takes effect.
        while left := self._flush_slice():
            if deadline is not None and time.monotonic() >= deadline:
                raise BrokerUnavailable(
                    f"Kafka has not acknowledged {left} records within {timeout_s:g} s; flush again to wait on, "
                    "`sowstream doctor` looks closer"
                )
        with self._serving:  # The callbacks that another thread is running have ended then.
            pass
        count, first = self._failures, self._first_failure
        self._failures, self._first_failure = 0, None
        if first is not None:
            raise first if count == 1 else type(first)(f"{count} records were not delivered; the first: {first}")

    def _flush_slice(self) -> int:
        """Wait a moment for acknowledgements; returns how many records have none."""
        try:
            return self._producer.flush(_FLUSH_SLICE_S)
        except KafkaException as error:  # A fatal error, such as a missing right to all topics.
            raise kafka_errors.stop(error, f"publishing to {self._last_topic}") from error

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures += 1
            self._first_failure = self._first_failure or kafka_errors.stop(error, f"publishing to {message.topic()}")


def _report(topic: str, on_delivery: Delivered, error: KafkaError | None, _: Message) -> None:
    on_delivery(None if error is None else kafka_errors.stop(error, f"publishing to {topic}"))
