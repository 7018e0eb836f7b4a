"""Writes records and input offsets without a transaction, in an order that a crash may cut anywhere.

`TransactionalProducer` commits everything at once. This one works in stages; each begins when Kafka has acknowledged
the one before it with all in-sync replicas::

    1  deltas, dead letters, records sent again with their key    may be repeated: their input is redelivered
    2  SOW records                                                each names its input record, which is then recognised
    3  marks, acks                                                are about records in SOW only
    4  input offsets                                              as a member of the group: a stale one is refused
       input positions in the mark topic                          at the same time: all input before them is in SOW

Only then does the local state follow. The price is a weaker guarantee, see the section "At least once" of the README.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from processor.errors import ProducerLost, TransactionAborted
from processor.kafka import errors as kafka_errors
from processor.kafka import outage, properties
from processor.kafka.outage import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from confluent_kafka import Message

    from processor.record import Outgoing


_BEAT_S = 0.25


class PauseDetector:
    """Counts the times when not even a thread that only reads the clock was scheduled within a limit.

    Another thread that is busy for long does not count: the others go on, and heartbeats with them.
    """

    def __init__(self, limit_s: float, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start the thread.

        Args:
            limit_s: a shorter pause does not count.
            clock_s: a monotonic clock, in seconds.
        """
        self._clock_s = clock_s
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._pauses = 0
        self._beat_s = clock_s()
        self._end = threading.Event()
        threading.Thread(target=self._run, name="pause detector", daemon=True).start()

    @property
    def pauses(self) -> int:
        """The number of times that the process stood still for longer than the limit, up to now."""
        with self._lock:
            now_s = self._clock_s()
            # The calling thread may have woken up before the detector's.
            if now_s - self._beat_s > self._limit_s:
                self._pauses += 1
            self._beat_s = now_s
            return self._pauses

    def close(self) -> None:
        """Stop the thread."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(_BEAT_S):
            _ = self.pauses


_TRY_S = 0.5
_REACH_TRY_S = 5.0
_REACH_PAUSE_S = 0.2  # Least time between two tries.


class _Batch(NamedTuple):
    """Records of one topic that are to be sent together."""

    topic: str
    partition: int
    records: Sequence[Outgoing]
    delivered: Callable[[int], None] | None
    """Called with the offset of the last one."""


class StagedProducer:
    """A producer without transactions.

    There is no fencing: Kafka accepts the records of a worker that has lost its partitions and has not noticed it yet.
    So nothing is sent after the process stood still for half the session timeout, and waiting records are dropped
    before the session timeout is over.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        *,
        later: Sequence[Collection[str]],
        session_timeout_s: float,
        is_stopping: Callable[[], bool] = lambda: False,
        blocked: Callable[[str, float], None] = lambda _call, _seconds: None,
        **sizes: int,
    ) -> None:
        """Create a producer that is not started.

        Args:
            kafka: librdkafka properties.
            later: the topics of the second stage, of the third, and so on; all others are of the first.
            session_timeout_s: how long the group keeps a silent member.
            is_stopping: whether to give up waiting for Kafka; called between the tries of a start.
            blocked: called with `init` and the seconds of each try of a start.
            sizes: `queue_bytes` and `record_bytes_max` of `properties.producer`.
        """
        self._blocked = blocked
        self._refusals = Refusals()
        self._timeout_s = session_timeout_s * 0.75
        self._pause_s = session_timeout_s * 0.5
        self._properties = self._refusals.listening(properties.producer(kafka, **sizes)) | {
            "message.timeout.ms": str(int(self._timeout_s * 1000)),
            "topic.metadata.propagation.max.ms": str(int(self._timeout_s * 250)),
            "acks": "all",
        }
        self._is_stopping = is_stopping
        self._stage_of = {topic: number for number, topics in enumerate(later, 1) for topic in topics}
        self._held: list[list[_Batch]] = [[] for _ in later]
        self._producer: Producer | None = None
        self._failed: KafkaError | None = None
        self._failed_at: tuple[str, int | None] | None = None
        self._pause_detector: PauseDetector | None = None
        self._pauses = 0
        self.is_open = False
        """True if anything uncommitted was sent or is held."""
        self._commit_seconds = 0.0
        self.settling_s = 0.0
        """Without transactions the next records may follow at once."""

    def start(self) -> None:
        """Start again, after the last records of the producer before have arrived or can no longer arrive.

        Waits as long as Kafka does not answer; `blocked` is called every few seconds meanwhile.

        Raises:
            BrokerUnavailable: we are to stop before Kafka has answered.
            ConfigurationError: Kafka refuses our credentials.
        """
        self._drop()
        if self._pause_detector is None:
            self._pause_detector = PauseDetector(self._pause_s)
        self._pauses = self._pause_detector.pauses
        producer = Producer(self._properties)
        self._refusals.error = None
        topic = next(iter(self._stage_of))  # One topic is enough: the cluster may have thousands.
        while True:
            began_s = time.monotonic()
            try:
                producer.list_topics(topic, _REACH_TRY_S)
            except KafkaException as error:
                with contextlib.suppress(KafkaException):
                    producer.poll(0)  # Collects the reason, if Kafka refused us.
                if self._refusals.error is not None:
                    raise kafka_errors.stop(self._refusals.error, "starting the producer") from error
                if self._is_stopping() or not kafka_errors.passes(kafka_errors.of(error)):
                    raise kafka_errors.stop(error, "starting the producer") from error
                outage.unreachable("starting the producer")
            else:
                break
            finally:
                spent_s = time.monotonic() - began_s
                self._blocked("init", spent_s)
            time.sleep(max(0.0, _REACH_PAUSE_S - spent_s))
        outage.reached()
        self._producer = producer

    def limit_batches(self, bytes_max: int) -> None:
        """Send no batch of several records larger than this, from the next `start` on."""
        self._properties["batch.size"] = str(min(bytes_max, int(self._properties["batch.size"])))

    def send(self, topic: str, partition: int | None, records: Sequence[Outgoing]) -> int:
        """Send records to one partition in their stage; None lets each key's hash choose. Returns their values' bytes.

        Raises:
            TransactionAborted: they cannot be sent.
        """
        return self._take(_Batch(topic, -1 if partition is None else partition, records, None))

    def send_marked(
        self, topic: str, partition: int, records: Sequence[Outgoing], delivered: Callable[[int], None]
    ) -> int:
        """`send`; the offset of the last record is reported during a later call."""
        return self._take(_Batch(topic, partition, records, delivered))

    def send_at_once(self, topic: str, partition: int, record: Outgoing) -> None:
        """Send a record at once, independently of its stage; `begin_commit` waits for it.

        Raises:
            TransactionAborted: it cannot be sent.
        """
        self._send_now(_Batch(topic, partition, [record], None))

    def begin_commit(self, commit_offsets: Callable[[], None], *, limit_s: float | None = None) -> None:
        """Send the held records, stage by stage, then commit the input offsets.

        Everything is done when this returns: `commit_offsets` reads the positions of the outputs, which must not change
        meanwhile.

        Args:
            commit_offsets: called when all stages are acknowledged; commits the offsets as a member of the group.
            limit_s: the longest that all stages may take, if that is less than records may wait.

        Raises:
            TransactionAborted: the batch must be repeated from the committed offsets; records that were sent stay sent.
            ProducerLost: the same; `start` comes next.
        """
        began_s = time.monotonic()
        deadline_s = began_s + min(self._timeout_s, limit_s or self._timeout_s) + _TRY_S
        self._deliver("records", deadline_s)
        for held in self._held:
            if held:
                batches = held.copy()
                held.clear()
                self._send_stage(batches, deadline_s)
        self._check_awake()
        commit_offsets()
        self._deliver("input positions", deadline_s)
        self.is_open = False
        self._commit_seconds = time.monotonic() - began_s

    def finish_commit(self) -> float:
        """The duration of the commit, in seconds."""
        return self._commit_seconds

    def abort(self) -> bool:
        """Drop the held records; none that was sent arrives later than this.

        Returns False: records that were sent stay sent.
        """
        self.is_open = False
        for held in self._held:
            held.clear()
        if self._producer is None or self._failed is not None or len(self._producer) > 0:
            self.start()
        elif self._pause_detector is not None:
            self._pauses = self._pause_detector.pauses
        return False

    def close(self) -> None:
        """Close the producer; records that wait to be sent are dropped."""
        self._drop()
        if self._pause_detector is not None:
            self._pause_detector.close()
            self._pause_detector = None

    def _take(self, batch: _Batch) -> int:
        """Send a batch, or hold it until its stage."""
        self.is_open = True
        stage = self._stage_of.get(batch.topic, 0)
        if stage == 0:
            self._check_awake()
            self._send_now(batch)
        else:
            self._held[stage - 1].append(batch)
        return sum([len(value) for _, value, _ in batch.records if value is not None])

    def _send_stage(self, batches: Sequence[_Batch], deadline_s: float) -> None:
        """Send the batches of a stage and wait until Kafka has acknowledged them."""
        self._check_awake()
        for batch in batches:
            self._send_now(batch)
        self._deliver(batches[0].topic, deadline_s)

    def _send_now(self, batch: _Batch) -> None:
        producer = self._begun()
        produce: Callable[..., None] = producer.produce
        topic, partition, records, delivered = batch
        callback: Callable[[KafkaError | None, Message], None] = self._on_delivery
        last = len(records) - 1
        for number, (key, value, headers) in enumerate(records):
            if number == last and delivered is not None:
                callback = self._report_offset(delivered)
            while True:
                try:
                    produce(topic, value, key, partition, callback, None, 0, headers)
                except BufferError:
                    # The queue is full: delivery reports make room, failures too.
                    self._serve_callbacks(partial(producer.poll, 0.05))
                    self._check_delivered(topic)
                except KafkaException as error:
                    place = topic, None if partition < 0 else partition
                    raise kafka_errors.in_transaction(error, f"sending to {topic}", place) from error
                else:
                    break
        self._serve_callbacks(partial(producer.poll, 0))

    def _deliver(self, what: str, deadline_s: float) -> None:
        """Wait until everything sent has been acknowledged.

        Raises:
            TransactionAborted: a record was not acknowledged.
        """
        producer = self._producer
        if producer is None:
            return
        while self._serve_callbacks(partial(producer.flush, _TRY_S)) > 0 and self._failed is None:
            if time.monotonic() > deadline_s:
                raise ProducerLost(f"sending {what}: Kafka does not say what became of them")
        self._check_delivered(what)

    def _serve_callbacks(self, call: Callable[[], int]) -> int:
        """Make a call that runs delivery reports; the end of the producer, which it raises once, fails the records."""
        while True:
            try:
                return call()
            except KafkaException as error:
                self._failed = kafka_errors.of(error)

    def _check_delivered(self, what: str) -> None:
        if self._failed is not None:
            raise kafka_errors.in_transaction(KafkaException(self._failed), f"sending {what}", self._failed_at)

    def _check_awake(self) -> None:
        """After a long sleep another member may have the partitions: check that first."""
        if self._pause_detector is not None and self._pause_detector.pauses != self._pauses:
            raise TransactionAborted(
                f"the process stood still for more than {self._pause_s:g} s; its partitions may have gone"
            )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = error
            topic = message.topic()
            self._failed_at = None if topic is None else (topic, message.partition())

    def _report_offset(self, delivered: Callable[[int], None]) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._on_delivery(error, message)
            offset = message.offset()
            if error is None and offset is not None:
                delivered(offset)

        return on_delivery

    def _begun(self) -> Producer:
        if self._producer is None:
            self.start()
        assert self._producer is not None
        return self._producer

    def _drop(self) -> None:
        """Give up the producer: drop waiting records, and wait for those in flight, so that none arrives late."""
        producer, self._producer = self._producer, None
        if producer is not None and len(producer) > 0:
            producer.purge(in_queue=True, in_flight=False)
            if (left := self._serve_callbacks(partial(producer.flush, self._timeout_s + _TRY_S))) > 0:
                properties.log.warning("%d records may arrive late: Kafka has not said what became of them", left)
                producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._failed = None
        self.is_open = False
        for held in self._held:
            held.clear()
