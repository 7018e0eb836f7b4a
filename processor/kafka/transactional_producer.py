"""Writes records and input offsets in one Kafka transaction, and says what its failures ask for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer, TopicPartition

from processor.errors import ProducerLost, TransactionAborted
from processor.kafka import failure, properties
from processor.kafka.limit import within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import Message

    from processor.record import Headers, Outgoing

_CALL_TIMEOUT_S = 5.0  # One try of a transaction call; retriable failures are tried again until the deadline.
_SLOW_COMMIT_S = 5.0


class TransactionalProducer:
    """One producer, at most one open transaction.

    librdkafka lacks KIP-890: after a commit that took so long that it may have been sent twice, a late copy could
    end a later transaction. So a slow or undecided commit costs the producer, and its successor's epoch fences it.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        transactional_id: str,
        transaction_timeout_s: float,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make one that is not started.

        Args:
            kafka: librdkafka properties.
            transactional_id: nobody else may have it.
            transaction_timeout_s: how long a transaction may take.
            is_stopping: whether to give up waiting for Kafka: asked between the tries of a start.
        """
        self._is_stopping = is_stopping
        self.transactional_id = transactional_id
        self._timeout_s = transaction_timeout_s
        self._properties = properties.transactional(
            kafka, transactional_id=transactional_id, transaction_timeout_s=transaction_timeout_s
        )
        self._producer: Producer | None = None
        self.is_open = False
        """Whether a transaction has begun and not ended."""

    def start(self) -> None:
        """Fence whoever had this transactional id before and roll back what it left open.

        Raises:
            BrokerUnavailable: no answer within the transaction timeout, or before we are to stop.
        """
        self._drop()
        producer = Producer(self._properties)
        deadline = time.monotonic() + max(self._timeout_s, 30.0)
        while True:
            try:
                producer.init_transactions(_CALL_TIMEOUT_S)
            except KafkaException as error:
                is_hopeless = not failure.of(error).retriable() or time.monotonic() > deadline
                if is_hopeless or self._is_stopping():
                    raise failure.stop(error, f"starting the producer {self.transactional_id}") from error
            else:
                break
        self._producer = producer

    def send(self, topic: str, partition: int | None, records: Sequence[Outgoing]) -> int:
        """Send records to one partition; None lets each key's hash choose. Returns the bytes of their values.

        Raises:
            TransactionAborted: the broker refused one.
        """
        producer = self._begun()
        produce: Callable[..., None] = producer.produce
        chosen = -1 if partition is None else partition
        size = 0
        for key, value, headers in records:
            if value is not None:
                size += len(value)
            try:
                produce(topic, value, key, chosen, headers=headers)
            except (BufferError, KafkaException) as error:
                self._send_again(topic, value, key, chosen, headers, error)
        producer.poll(0)
        return size

    def send_marked(
        self, topic: str, partition: int, records: Sequence[Outgoing], delivered: Callable[[int], None]
    ) -> int:
        """`send`, and tell the offset of the last record during a later call.

        Only one record in a batch asks to be told: a callback for each costs 40 % more.
        """
        *most, (key, value, headers) = records
        size = self.send(topic, partition, most)

        def on_delivery(error: object, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                delivered(offset)

        produce: Callable[..., None] = self._begun().produce
        try:
            produce(topic, value, key, partition, on_delivery, headers=headers)
        except (BufferError, KafkaException) as error:
            self._send_again(topic, value, key, partition, headers, error, on_delivery)
        return size + (0 if value is None else len(value))

    def commit(self, topic: str, offsets: Mapping[int, int], group_metadata: Any) -> None:
        """Commit the transaction with the next input offset to read of each partition.

        Raises:
            TransactionAborted: nothing of it will be seen; `abort` comes next.
            ProducerLost: the same, or nobody knows; `start` comes next, and what is committed must be asked for.
        """
        producer = self._begun()
        positions = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        began = time.monotonic()

        def send_offsets() -> None:
            producer.send_offsets_to_transaction(positions, group_metadata, _CALL_TIMEOUT_S)

        try:
            # librdkafka's own limit does not hold for this call while the group's coordinator is away (its #5456).
            within(self._timeout_s, lambda: self._call("sending input offsets", send_offsets))
        except TimeoutError as error:
            raise ProducerLost(f"sending input offsets ({self.transactional_id}): {error}") from error
        self._call("committing", lambda: producer.commit_transaction(_CALL_TIMEOUT_S))
        self.is_open = False
        producer.poll(0)
        if time.monotonic() - began > _SLOW_COMMIT_S:
            self.start()

    def abort(self) -> None:
        """Roll the open transaction back, with a new producer if this one cannot."""
        if self._producer is None:
            self.start()
            return
        if not self.is_open:
            return
        try:
            self._call("aborting", lambda: self._begun().abort_transaction(_CALL_TIMEOUT_S))
        except TransactionAborted:
            self.start()
        self.is_open = False

    def close(self) -> None:
        """Let go of the producer; an open transaction is left to the broker to roll back."""
        self._drop()

    def _begun(self) -> Producer:
        """The producer with an open transaction; opened with the first record, so that idleness costs nothing."""
        if self._producer is None:
            self.start()
        assert self._producer is not None
        if not self.is_open:
            try:
                self._producer.begin_transaction()
            except KafkaException as error:
                raise ProducerLost(f"beginning a transaction: {failure.of(error).str()}") from error
            self.is_open = True
        return self._producer

    def _send_again(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Headers | None,
        error: BaseException,
        on_delivery: Callable[[object, Message], None] | None = None,
    ) -> None:
        """The queue to the broker is full: wait for room, then send; the order within the partition stays."""
        producer = self._producer
        assert producer is not None
        produce: Callable[..., None] = producer.produce
        deadline = time.monotonic() + self._timeout_s
        while isinstance(error, BufferError):
            if time.monotonic() > deadline:
                raise ProducerLost(f"sending to {topic}: the queue has been full for {self._timeout_s:g} s") from error
            producer.poll(0.05)
            try:
                produce(topic, value, key, partition, on_delivery, headers=headers)
            except (BufferError, KafkaException) as again:
                error = again
            else:
                return
        assert isinstance(error, KafkaException)
        raise failure.in_transaction(error, f"sending to {topic}") from error

    def _call(self, doing: str, call: Callable[[], None]) -> None:
        """Make a transaction call, again while it may be repeated and the transaction can still be alive."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                call()
            except KafkaException as error:
                if failure.of(error).retriable() and time.monotonic() < deadline:
                    continue
                raise failure.in_transaction(error, f"{doing} ({self.transactional_id})") from error
            else:
                return

    def _drop(self) -> None:
        """Forget the producer without waiting for what it still has in hand."""
        producer, self._producer, self.is_open = self._producer, None, False
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
