"""Sends commands that have a sequence number or ask for acks, and reads the acks on a thread.

A worker finds duplicates by client, partition and sequence: of the commands that one name sends to one partition, it
accepts only a sequence above all earlier ones. Two processes that share a name would therefore make the worker drop
each other's records. Unless the caller numbers his commands himself, the name on the wire is the client's name with
`~once-` and eight random digits, new for each `Client`, and sequences begin with 1.
"""

from __future__ import annotations

import copy
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from processor.client.publish.outbox import PublishOptions
from processor.client.publish.pending_acks import Lane, PendingAcks, PendingCommand
from processor.config import Config
from processor.errors import AcksMissing, ConfigurationError, PartitionHeld, SowstreamError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.clients.publisher import Delivered, Publisher
from processor.kafka.message import Message
from processor.kafka.partitioner import partition_for
from processor.record import Headers
from processor.wire.ack import Ack, AckType, read_ack
from processor.wire.publisher_headers import ack_type_header, encoded, sequence_headers
from processor.wire.publisher_mark import is_reserved, random_name

_READ_MAX: Final = 10_000
_WAIT_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 10.0

log = logging.getLogger(__name__)


class AckReader:
    """Reads ack topics on a thread of its own, from a start offset of each partition, until it is closed.

    While Kafka does not answer, it retries, as librdkafka does. The pending commands of a topic fail if its acks cannot
    be read on, as after the topic was recreated; an error of the connection fails those of all topics. The next command
    of a topic starts to read its acks again.
    """

    def __init__(
        self, kafka: Mapping[str, str], pending_acks: PendingAcks, *, group: str, serve: Callable[[], None]
    ) -> None:
        """Create the reader; its thread starts with the first topic.

        Args:
            kafka: librdkafka properties.
            pending_acks: the commands that acks settle.
            group: the reader's name for the brokers; the group is never joined.
            serve: called many times a second, to run delivery callbacks.
        """
        self._kafka = kafka
        self._pending_acks = pending_acks
        self._group = group
        self._serve = serve
        self._asked: list[Position] = []
        self._assigned: list[Position] = []
        self._topics: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_this_thread(self) -> bool:
        """True if the caller is a callback of this reader."""
        return threading.current_thread() is self._thread

    def watch(self, topic: str, positions: list[Position]) -> None:
        """Read the acks of one more topic, or again those of one that failed.

        Args:
            topic: the SOW topic.
            positions: the start offset of each partition of the ack topic.
        """
        with self._lock:
            self._topics[positions[0].topic] = topic
            self._pending_acks.begin(topic)
            self._asked += positions
            if self._thread is None:
                # A forgotten client does not keep the program from ending.
                self._thread = threading.Thread(target=self._run, name="sowstream-acks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread; pending commands fail."""
        self._closing.set()
        if self._thread is not None and not self.is_this_thread:
            self._thread.join(_CLOSE_TIMEOUT_S)
        closed = AcksMissing("the client was closed before the ack came; the record itself is in Kafka")
        self._pending_acks.close(closed)

    def _run(self) -> None:
        while not self._closing.is_set():
            if not self._asked:  # After an error: until a command asks again.
                self._closing.wait(_WAIT_S)
                continue
            try:
                self._read()
            except SowstreamError as error:
                self._fail_all(error)
            except Exception as error:
                log.exception("the thread that reads acks begins again")
                self._fail_all(Stop(f"acks could not be read: {error!r}"))

    def _read(self) -> None:
        """Read acks until the end, or an error of all topics."""
        reader = LogReader(self._kafka, group=self._group, collects_trouble=True)
        try:
            while not self._closing.is_set():
                self._turn(reader)
        finally:
            reader.close()

    def _turn(self, reader: LogReader) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        if asked:
            self._assigned += asked
            reader.add(asked)
        # A read of many messages would wait until there are as many.
        messages = reader.read(1, _WAIT_S).messages + reader.read(_READ_MAX, 0).messages
        try:
            self._serve()
        except Exception:
            log.exception("on_delivery raised")
        for message in messages:
            if self._pending_acks.waits_for(message.key()):  # Acks of other clients are skipped without parsing.
                self._take(message)
        for (kafka_topic, _), trouble in reader.take_troubled().items():
            self._fail(reader, kafka_topic, trouble)

    def _fail(self, reader: LogReader, kafka_topic: str, trouble: PartitionHeld | Stop) -> None:
        """Stop reading a topic, and fail its commands."""
        positions = [position for position in self._assigned if position.topic == kafka_topic]
        if not positions:
            return  # Another partition of it had trouble, too.
        self._assigned = [position for position in self._assigned if position.topic != kafka_topic]
        for position in positions:
            reader.remove(kafka_topic, position.partition)
        log.warning("acks of %s are not read until the next command asks for one: %s", kafka_topic, trouble)
        error = trouble if isinstance(trouble, Stop) else Stop(str(trouble))
        self._pending_acks.fail(self._topics[kafka_topic], error)

    def _fail_all(self, error: SowstreamError) -> None:
        """Fail the commands of all topics."""
        with self._lock:
            positions, self._asked, self._assigned = self._assigned + self._asked, [], []
        log.warning("acks are not read until the next command asks for one: %s", error)
        for kafka_topic in {position.topic for position in positions}:
            self._pending_acks.fail(self._topics[kafka_topic], error)

    def _take(self, message: Message) -> None:
        kafka_topic, partition = message.topic() or "", message.partition()
        assert partition is not None
        try:
            ack = read_ack(self._topics[kafka_topic], message.value() or b"")
        except ValueError as error:
            log.warning("%s partition %d offset %s: %s", kafka_topic, partition, message.offset(), error)
        else:
            self._pending_acks.apply_ack(partition, ack)


PENDING_ACKS_MAX: Final = 100_000
"""Limit of commands that wait for acks; beyond it, publishing blocks."""

STALL_S: Final = 60.0
"""Time without any ack after which waiting callers get AcksMissing: no worker may be running."""

_NAME_BYTES_MAX: Final = 1000


class AckedPublisher:
    """Sends numbered and acknowledged commands, and waits for their acks. Any thread."""

    def __init__(self, config: Config, admin: Admin, lookup: TopicLookup, publisher: Publisher, *, name: str) -> None:
        self._name = name
        self._kafka_names = config.kafka_names
        self._processors = config.processors.keys()
        if is_reserved(name):
            raise ConfigurationError(
                f"client name {name!r:.100}: names of this form are forgotten after a day; choose another one"
            )
        self._own_name = random_name(name, secrets.token_hex(4))
        self._admin = admin
        self._lookup = lookup
        self._publisher = publisher
        self._pending_acks = PendingAcks(commands_max=PENDING_ACKS_MAX, stall_s=STALL_S)
        self._reader = AckReader(
            config.kafka,
            self._pending_acks,
            group=f"{config.group_prefix}.client.{name}",
            serve=publisher.serve,
        )
        self._watching = threading.Lock()
        self._sequence = 0
        # Held from the choice of a sequence until the record is queued: otherwise a later number could overtake an
        # earlier one, whose record would be dropped as a duplicate. No callback runs under it.
        self._order = threading.Lock()

    def named(self, name: str) -> AckedPublisher:
        """A publisher for commands with numbers of their own under another name; it shares all else with this one."""
        other = copy.copy(self)
        other._name = name  # noqa: SLF001
        return other

    def send(
        self,
        topic: str,
        kafka_topic: str,
        record: tuple[bytes | None, bytes | None, Headers | None],
        types: tuple[AckType, ...],
        options: PublishOptions,
        *,
        partition: int | None = None,
    ) -> Future[Ack] | None:
        """Send one command; returns the future of its last ack, if it asks for acks.

        Args:
            topic: the SOW topic.
            kafka_topic: its input topic in Kafka.
            record: Kafka key, value and headers.
            types: the acks that it asks for; none for a command that only has a sequence.
            options: the publisher's options; the headers among them are in the record already.
            partition: the partition to send to; None: the one that the key's hash selects.

        Raises:
            ConfigurationError: the topic has no acks, or the client name or the sequence is invalid.
            RecordRejected: the record is larger than Kafka accepts.
            AcksMissing: too many commands are pending, and none was acknowledged for a minute.
            Stop: the producer cannot go on, or the topic's acks cannot be read.
        """
        if options.sequence is not None and not 0 <= options.sequence < 2**63:
            raise ConfigurationError(f"sequence is {options.sequence!r}; it is an integer from 0 to 2**63 - 1")
        size = len(encoded(self._name, "the client's name"))
        if not 0 < size <= _NAME_BYTES_MAX:
            raise ConfigurationError(
                f"the client's name has {size} bytes; for commands with ack or sequence it has 1 to {_NAME_BYTES_MAX}"
            )
        partitions = self._lookup.partitions(kafka_topic)
        if types:
            self._watch(topic)
            self._pending_acks.wait_for_room(may_wait=not self.is_calling_back)
        if partition is None:
            assert record[0] is not None
            partition = partition_for(record[0], partitions)
        while True:
            with self._order:
                sent, future = self._send_numbered(topic, kafka_topic, partition, record, types, options)
            if sent:
                self._publisher.serve()
                return future
            self._publisher.wait_for_room()

    @property
    def is_calling_back(self) -> bool:
        """True on the thread that reads acks."""
        return self._reader.is_this_thread

    def wait(self, timeout_s: float | None) -> None:
        """Wait until every command is settled; as `PendingAcks.wait`."""
        self._pending_acks.wait(timeout_s, may_wait=not self.is_calling_back)

    def close(self) -> None:
        """End the thread that reads acks; pending commands fail."""
        self._reader.close()

    def _send_numbered(
        self,
        topic: str,
        kafka_topic: str,
        partition: int,
        record: tuple[bytes | None, bytes | None, Headers | None],
        types: tuple[AckType, ...],
        options: PublishOptions,
    ) -> tuple[bool, Future[Ack] | None]:
        """Number a command and queue it; False: the producer's queue is full, and nothing was sent."""
        key, value, own_headers = record
        client = self._own_name if options.sequence is None else self._name
        sequence = self._sequence + 1 if options.sequence is None else options.sequence
        headers = [*(own_headers or ()), *sequence_headers(client, sequence)]
        pending, on_delivery = None, options.on_delivery
        lane = Lane(topic, partition, client)
        if types:
            headers.append(ack_type_header(types))
            pending = PendingCommand(
                types,
                sequence,
                sow_key=None if key is None else key.decode(),
                command_id=options.command_id,
                on_ack=options.on_ack,
            )
            # Before it is sent: the ack may arrive before this call returns.
            self._pending_acks.add(lane, pending)
            on_delivery = partial(self._delivered, lane, pending, options.on_delivery)
        sent = False
        try:
            sent = self._publisher.try_send(kafka_topic, key, value, headers, on_delivery, partition=partition)
        finally:
            if pending is not None and not sent:
                self._pending_acks.withdraw(lane, pending)
        if sent and options.sequence is None:
            self._sequence = sequence
        return sent, None if pending is None else pending.future

    def _delivered(
        self, lane: Lane, pending: PendingCommand, on_delivery: Delivered | None, error: Stop | None
    ) -> None:
        """Take the delivery report of a command; one that Kafka did not take fails, as it gets no ack."""
        if error is None:
            self._pending_acks.delivered(lane, pending)
        else:
            self._pending_acks.withdraw(lane, pending, error)
        if on_delivery is not None:
            on_delivery(error)

    def _watch(self, topic: str) -> None:
        """Start to read the topic's acks, before the first command that asks for one is sent, and after an error."""
        if self._pending_acks.is_read(topic):
            return
        with self._watching:
            if self._pending_acks.is_read(topic):
                return
            ack_topic = self._kafka_names.topic(topic, "ack")
            if self._pending_acks.has_begun(topic):
                self._lookup.forget(ack_topic)
            try:
                partitions = range(self._lookup.partitions(ack_topic))
            except ConfigurationError as error:
                if topic not in self._processors:
                    raise
                raise ConfigurationError(
                    f"{topic!r} is the topic of a processor, which sends no acks unless it declares the output `ack`: "
                    f"publish without an ack ({error})"
                ) from None
            ends = self._admin.end_offsets(ack_topic, partitions)
            positions = [Position(ack_topic, partition, end) for partition, end in ends.items()]
            self._reader.watch(topic, positions)
