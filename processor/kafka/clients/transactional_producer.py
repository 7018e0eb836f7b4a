"""Writes records and input offsets in one Kafka transaction, and maps its failures to the next step."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer, TopicPartition

from processor.errors import BrokerUnavailable, ProducerLost, TransactionAborted
from processor.kafka import errors as kafka_errors
from processor.kafka import outage, properties
from processor.kafka.background_calls import BackgroundCalls
from processor.kafka.outage import Refusals, leave
from processor.kafka.properties import ConnectionBreaks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import Message

    from processor.record import Headers, Outgoing

_CALL_TIMEOUT_S = 5.0  # One try of a transaction call; retriable failures are tried again until the deadline.
_LEAST_TIMEOUT_S = 0.1  # librdkafka's binding takes 0 as no limit.
_SLOW_S = 5.0
_TRY_S = 0.2  # Least time between two tries of a start.
_LOOK_TIMEOUT_S = 1.0
_TRIES_MAX = 3  # Of a start on one client while other brokers answer: its coordinator may be dead.
_LINE_INTERVAL_S = 60.0
_ABORT_LIMIT_S = 2.0  # Closing must not take long; the broker rolls an open transaction back.
_SETTLE_S = (0.008, 0.020)
"""Time in which most brokers have written the end of a transaction, at least and at most: twice that of its commit.
They refuse the next one until then; librdkafka asks again after 20 ms only, and few of them spare a busy broker."""
_LATE_S = 1.0  # A commit's last try has ended this long after its deadline, unless librdkafka forgot its limit.


class TransactionalProducer:
    """A producer with at most one open transaction.

    librdkafka lacks KIP-890: after a broken connection or a missing answer it sends a request twice, and a late copy
    could end a later transaction or take its offsets back (KAFKA-17754). So the producer is replaced after a
    transaction during which a connection broke, and after a slow or repeated commit or abort: the epoch of its
    successor fences the copy.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        transactional_id: str,
        transaction_timeout_s: float,
        is_stopping: Callable[[], bool] = lambda: False,
        blocked: Callable[[str, float], None] = lambda _call, _seconds: None,
        **sizes: int,
    ) -> None:
        """Create a producer that is not started.

        Args:
            kafka: librdkafka properties.
            transactional_id: no other producer may have it.
            transaction_timeout_s: how long a transaction may take.
            is_stopping: whether to give up waiting for Kafka; called between the tries of a start.
            blocked: called with the name and the seconds of each transaction call: `init`, `begin`, `send_offsets`,
                `commit` or `abort`.
            sizes: `queue_bytes` and `record_bytes_max` of `properties.transactional`.
        """
        self._is_stopping = is_stopping
        self.transactional_id = transactional_id
        self._timeout_s = transaction_timeout_s
        self._blocked = blocked
        self._breaks = ConnectionBreaks(properties.log)
        self._refusals = Refusals()
        self._properties = self._refusals.listening(
            properties.transactional(
                kafka,
                transactional_id=transactional_id,
                transaction_timeout_s=transaction_timeout_s,
                logger=self._breaks,
                **sizes,
            )
        )
        self._producer: Producer | None = None
        self.is_open = False
        """True if a transaction has begun and not ended."""
        self.renewals = 0
        """Number of times the producer was replaced after a transaction that ended well."""
        self._is_doubtful = False  # A call was repeated, or took so long that librdkafka may have repeated it.
        self._commits = BackgroundCalls(f"commits of {transactional_id}")
        self._commit_limit_s = 0.0
        self._commit_seconds = 0.0
        self._settled_s = 0.0

    @property
    def settling_s(self) -> float:
        """Seconds until the brokers have most likely written the end of the last transaction to all its partitions."""
        return 0.0 if self.is_open else max(0.0, self._settled_s - time.monotonic())

    def start(self) -> None:
        """Fence the producer that had this transactional id before, and roll its open transaction back.

        Waits as long as Kafka does not answer; `blocked` is called every few seconds meanwhile.

        Raises:
            BrokerUnavailable: we are to stop before Kafka has answered.
            ConfigurationError: Kafka refuses our credentials, or lacks an ACL for us.
        """
        self._drop()
        # Requests sent before the new epoch are fenced. Breaks count from here on, also those during the start:
        # librdkafka logs the same line once in half a minute, and the break that matters may be the next one.
        self._breaks.count, self._is_doubtful = 0, False
        self._refusals.error = None
        producer, tries, line_s = Producer(self._properties), 0, 0.0
        while True:
            began_s = time.monotonic()
            try:
                producer.init_transactions(_CALL_TIMEOUT_S)
            except KafkaException as error:
                is_reached = self._is_worth_waiting(producer, error)
                tries = tries + 1 if is_reached else 0
                if is_reached and began_s - line_s > _LINE_INTERVAL_S:
                    line_s = began_s
                    why = kafka_errors.of(error).str()
                    properties.log.warning("starting the producer %s: %s; waiting", self.transactional_id, why)
            else:
                break
            finally:
                now_s = self._spent("init", began_s)
            if tries == _TRIES_MAX:
                former, producer, tries = producer, Producer(self._properties), 0
                leave(former)
                del former
            time.sleep(max(0.0, _TRY_S - (now_s - began_s)))
        outage.reached()
        self._producer = producer

    def limit_batches(self, bytes_max: int) -> None:
        """Send no batch of several records larger than this, from the next `start` on."""
        self._properties["batch.size"] = str(min(bytes_max, int(self._properties["batch.size"])))

    def _is_worth_waiting(self, producer: Producer, error: KafkaException) -> bool:
        """Return whether some broker answers after a start that failed; returns only if a repetition may succeed.

        Raises:
            Stop: a repetition fails, too, or we are to stop.
        """
        doing = f"starting the producer {self.transactional_id}"
        mapped = kafka_errors.stop(error, doing)
        kafka_error = kafka_errors.of(error)
        goes_by = kafka_error.retriable() or isinstance(mapped, BrokerUnavailable)
        if kafka_error.fatal() or not goes_by or self._is_stopping():
            raise mapped from error
        try:
            producer.poll(0)  # Collects the reason, if Kafka refused us.
            if self._refusals.error is not None:
                raise kafka_errors.stop(self._refusals.error, doing) from error
            producer.list_topics(timeout=_LOOK_TIMEOUT_S)
        except KafkaException as silence:
            if not kafka_errors.is_unreachable(silence):
                raise kafka_errors.stop(silence, doing) from silence
            outage.unreachable(doing)
            return False
        outage.reached()
        return True

    def send(self, topic: str, partition: int | None, records: Sequence[Outgoing]) -> int:
        """Send records to one partition; None lets each key's hash choose. Returns the bytes of their values.

        Raises:
            TransactionAborted: the broker refused one.
        """
        producer = self._begun()
        # Called by position: passing the headers by name takes as long as all else.
        produce: Callable[..., None] = producer.produce
        number = -1 if partition is None else partition
        size = 0
        for key, value, headers in records:
            if value is not None:
                size += len(value)
            try:
                produce(topic, value, key, number, None, None, 0, headers)
            except BufferError:
                self._send_with_room(topic, value, key, number, headers)
            except KafkaException as error:
                raise kafka_errors.of_record(producer, error, topic, number) from error
        self._serve(producer, 0, topic)
        return size

    def send_marked(
        self, topic: str, partition: int, records: Sequence[Outgoing], delivered: Callable[[int], None]
    ) -> int:
        """`send`; the offset of the last record is reported during a later call.

        Only one record of a batch has a callback: one for each costs 40 % more.
        """
        *most, (key, value, headers) = records
        size = self.send(topic, partition, most)

        def on_delivery(error: object, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                delivered(offset)

        self._send_with_room(topic, value, key, partition, headers, on_delivery)
        return size + (0 if value is None else len(value))

    def commit(self, topic: str, offsets: Mapping[int, int], group_metadata: Any) -> None:
        """`begin_commit` without offset metadata, then `finish_commit`."""
        self.begin_commit(topic, offsets, group_metadata)
        self.finish_commit()

    def begin_commit(
        self,
        topic: str,
        offsets: Mapping[int, int],
        group_metadata: Any,
        *,
        notes: Mapping[int, str] | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Start the commit of the transaction, with the next input offset to read of each partition.

        Until `finish_commit` the producer must not be used: a record that is sent belongs to the open transaction,
        which is still this one.

        Args:
            topic: the input.
            offsets: by partition.
            group_metadata: the proof that we are a member of the group.
            notes: the offset metadata, by partition; partitions that are missing have none.
            limit_s: longest time for the commit, if that is less than the transaction timeout.

        Raises:
            ProducerLost: the transaction could not even begin.
        """
        producer = self._begun()
        positions = [
            TopicPartition(topic, partition, offset, metadata=(notes or {}).get(partition, ""))
            for partition, offset in offsets.items()
        ]
        began_s = time.monotonic()
        limit_s = self._commit_limit_s = min(self._timeout_s, limit_s or self._timeout_s)
        deadline_s = began_s + limit_s

        def send_offsets(timeout_s: float) -> None:
            producer.send_offsets_to_transaction(positions, group_metadata, timeout_s)

        def commit() -> None:
            self._call("send_offsets", send_offsets, deadline_s)
            # librdkafka's own limit does not hold for that call while the group's coordinator is away (its #5456). By
            # now the transaction may have been rolled back, and its partitions may have another owner.
            if time.monotonic() > deadline_s:
                raise ProducerLost(f"send_offsets ({self.transactional_id}): no answer within {limit_s:g} s")
            self._call("commit", producer.commit_transaction, deadline_s)
            self._commit_seconds = time.monotonic() - began_s

        self._commits.begin(commit)

    def finish_commit(self) -> float:
        """Wait until the transaction is committed; returns the seconds that this took.

        Raises:
            TransactionAborted: no reader will see it; call `abort` next.
            ProducerLost: the same, or the outcome is unknown; call `start` next, and fetch the committed offsets.
        """
        producer = self._producer
        assert producer is not None
        try:
            self._commits.wait(self._commit_limit_s + _LATE_S)
        except TimeoutError as error:
            raise ProducerLost(f"commit ({self.transactional_id}): {error}") from error
        self._ended(producer)
        self._settled_s = time.monotonic() + min(max(_SETTLE_S[0], 2 * self._commit_seconds), _SETTLE_S[1])
        return self._commit_seconds

    def abort(self) -> bool:
        """Roll the open transaction back, with a new producer if this one cannot, or may have sent the abort twice.

        Returns True: no reader sees records of a transaction that is not committed.
        """
        producer = self._producer
        if producer is None:
            self.start()
            return True
        if self._commits.is_busy:
            # Ctrl-C interrupted the wait for a commit: the commit ends first, and may leave nothing to roll back.
            with contextlib.suppress(TransactionAborted):
                self.finish_commit()
        if not self.is_open:
            return True
        try:
            self._call("abort", producer.abort_transaction, time.monotonic() + self._timeout_s)
        except TransactionAborted:
            self.start()
        else:
            self._ended(producer)
        return True

    def close(self) -> None:
        """Close the producer; an open transaction is rolled back, by the broker if that takes long."""
        if self._producer is not None and self.is_open and not self._commits.is_busy:
            # Destroying a producer in the middle of a transaction has crashed the process, inside librdkafka.
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_LIMIT_S)
        self._commits.close()
        self._drop()

    def _begun(self) -> Producer:
        """The producer with an open transaction, which begins with the first record: an idle worker commits nothing."""
        if self._producer is None:
            self.start()
        assert self._producer is not None
        if not self.is_open:
            began_s = time.monotonic()
            try:
                self._producer.begin_transaction()
            except KafkaException as error:
                raise ProducerLost(f"begin ({self.transactional_id}): {kafka_errors.of(error).str()}") from error
            finally:
                self._spent("begin", began_s)
            self.is_open = True
        return self._producer

    def _send_with_room(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Headers | None,
        on_delivery: Callable[[object, Message], None] | None = None,
    ) -> None:
        """Send a record as soon as the queue to the broker has room; the order within the partition stays.

        No error is kept in a variable here: error and frame would refer to each other, and keep the record until the
        garbage collector runs, which it does twice a minute.
        """
        producer, deadline_s = self._begun(), time.monotonic() + self._timeout_s
        produce: Callable[..., None] = producer.produce
        while True:
            try:
                return produce(topic, value, key, partition, on_delivery, None, 0, headers)
            except BufferError:
                self._serve(producer, 0.05, topic)
            except KafkaException as error:
                raise kafka_errors.of_record(producer, error, topic, partition) from error
            if time.monotonic() > deadline_s:
                raise ProducerLost(f"sending to {topic}: the queue has been full for {self._timeout_s:g} s")

    def _serve(self, producer: Producer, timeout_s: float, topic: str) -> None:
        """Run delivery reports; the end of a producer, as when it was fenced, is raised here as well as by a call."""
        try:
            producer.poll(timeout_s)
        except KafkaException as error:
            raise kafka_errors.in_transaction(error, f"sending to {topic}") from error

    def _call(self, name: str, call: Callable[[float], None], deadline_s: float) -> None:
        """Make a transaction call, and repeat it while that is allowed and the transaction can still be alive."""
        began_s = tried_s = time.monotonic()
        while True:
            try:
                call(max(_LEAST_TIMEOUT_S, min(_CALL_TIMEOUT_S, deadline_s - tried_s)))
            except KafkaException as error:
                if kafka_errors.of(error).retriable() and time.monotonic() < deadline_s:
                    self._is_doubtful = True
                    continue
                raise kafka_errors.in_transaction(error, f"{name} ({self.transactional_id})") from error
            else:
                return
            finally:
                tried_s = self._spent(name, tried_s)
                if tried_s - began_s > _SLOW_S:
                    self._is_doubtful = True

    def _ended(self, producer: Producer) -> None:
        """Note the end of a transaction; replace the producer if a request of it may have been sent twice."""
        self.is_open = False
        try:
            producer.poll(0)  # Delivery reports, and log lines of broken connections.
        except KafkaException:
            self._is_doubtful = True  # The producer was lost since; its answer about the transaction holds.
        if self._is_doubtful or self._breaks.count:
            self.renewals += 1
            self.start()

    def _spent(self, call: str, began_s: float) -> float:
        """Report the duration of a call; returns the time now."""
        now_s = time.monotonic()
        self._blocked(call, now_s - began_s)
        return now_s

    def _drop(self) -> None:
        """Give up the producer without waiting for the records in flight."""
        producer, self._producer, self.is_open = self._producer, None, False
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            # A fatal error that was not polled would be raised while the producer is destroyed, at any line.
            with contextlib.suppress(KafkaException):
                producer.poll(0)
