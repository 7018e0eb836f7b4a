"""Sends commands that are numbered or acknowledged, and knows which number came of which.

A worker finds duplicates by client, partition and sequence: of what one name sends to one partition, only a sequence
above all before is taken. So two processes that share a name would have each other's records dropped. Unless the
caller numbers his commands himself, the name on the wire is therefore the client's with eight random digits, new for
each `Client`, and the sequences begin with 1.
"""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from processor.client.publish.ack_reader import AckReader
from processor.client.publish.outstanding import Lane, OnAck, Outstanding, Pending
from processor.client.topic_lookup import TopicLookup
from processor.config import Config
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.kafka.producers.publisher import Delivered, Publisher
from processor.kafka.readers.log_reader import Position
from processor.record import Headers
from processor.wire.ack import Ack, AckType
from processor.wire.publisher_headers import ack_type_header, sequence_headers

OUTSTANDING_MAX: Final = 100_000
"""Commands that may wait for their acks; the next publish waits for room."""

STALL_S: Final = 60.0
"""No ack for so long, and who waits is told that no worker may be running."""

_NAME_BYTES_MAX: Final = 1000


class Asked(NamedTuple):
    """What a publisher wants to be told of one command, and how he numbers it."""

    types: tuple[AckType, ...]
    """The acks; none for a command that is numbered only."""
    on_ack: OnAck | None
    """Told each of them."""
    sequence: int | None
    """The caller's own number; None: one is made."""
    command_id: str | None
    """What the caller calls it."""


class Acknowledged:
    """The half of publishing that numbers commands and waits for acks. Any thread."""

    def __init__(self, config: Config, admin: Admin, lookup: TopicLookup, publisher: Publisher, *, name: str) -> None:
        self._name = name
        self._kafka_names = config.kafka_names
        self._own_name = f"{name}-{secrets.token_hex(4)}"
        self._admin = admin
        self._lookup = lookup
        self._publisher = publisher
        self._outstanding = Outstanding(commands_max=OUTSTANDING_MAX, stall_s=STALL_S)
        self._reader = AckReader(
            config.kafka,
            self._outstanding,
            group=f"{config.group_prefix}.client.{name}",
            serve=publisher.serve,
        )
        self._watched: set[str] = set()
        self._watching = threading.Lock()
        self._sequence = 0
        # From the choice of a sequence until the record stands in the queue: one at a time, or a later number would
        # overtake an earlier one, and the earlier be dropped as a duplicate. No callback runs under it.
        self._order = threading.Lock()

    def send(
        self,
        topic: str,
        kafka_topic: str,
        record: tuple[bytes | None, bytes | None, Headers | None],
        asked: Asked,
        on_delivery: Delivered | None,
        *,
        partition: int | None = None,
    ) -> Future[Ack] | None:
        """Send one command; the future of its last ack, if any was asked for.

        Args:
            topic: the SOW topic.
            kafka_topic: its input.
            record: Kafka key, value and headers.
            asked: what the publisher wants to be told of it.
            on_delivery: called when Kafka has it, or not.
            partition: where it goes; None: the key's hash says it.

        Raises:
            ConfigurationError: the topic has no acks; a name or a sequence that cannot be one.
            RecordRejected: Kafka would not take it.
            AcksMissing: too many are outstanding, and none is acknowledged.
            Stop: the producer cannot go on, or acks cannot be read.
        """
        if asked.sequence is not None and not 0 <= asked.sequence < 2**63:
            raise ConfigurationError(f"sequence is {asked.sequence!r}; it is an integer from 0 to 2**63 - 1")
        if not 0 < len(self._name.encode()) <= _NAME_BYTES_MAX:
            raise ConfigurationError(
                f"the client's name is {len(self._name.encode())} bytes long; for commands with ack or sequence it is "
                f"1 to {_NAME_BYTES_MAX}"
            )
        partitions = self._lookup.partitions(kafka_topic)
        if asked.types:
            self._watch(topic)
            self._outstanding.wait_for_room(may_wait=not self._reader.is_this_thread)
        if partition is None:
            assert record[0] is not None
            partition = partition_for(record[0], partitions)
        while True:
            with self._order:
                sent, future = self._try(topic, kafka_topic, partition, record, asked, on_delivery)
            if sent:
                self._publisher.serve()
                return future
            self._publisher.wait_for_room()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until every command is settled; as `Outstanding.wait`."""
        self._outstanding.wait(timeout_s, may_wait=not self._reader.is_this_thread)

    def close(self) -> None:
        """End the thread that reads acks; what is outstanding fails."""
        self._reader.close()

    def _try(
        self,
        topic: str,
        kafka_topic: str,
        partition: int,
        record: tuple[bytes | None, bytes | None, Headers | None],
        asked: Asked,
        on_delivery: Delivered | None,
    ) -> tuple[bool, Future[Ack] | None]:
        """Number a command and hand it over; False: the queue to the broker is full, nothing was sent."""
        key, value, given = record
        client = self._own_name if asked.sequence is None else self._name
        sequence = self._sequence + 1 if asked.sequence is None else asked.sequence
        headers = [*(given or ()), *sequence_headers(client, sequence)]
        pending, told = None, on_delivery
        lane = Lane(topic, partition, client)
        if asked.types:
            headers.append(ack_type_header(asked.types))
            pending = Pending(
                asked.types,
                sequence,
                sow_key=None if key is None else key.decode(),
                command_id=asked.command_id,
                on_ack=asked.on_ack,
            )
            # Before it is sent: the ack may come before this call returns.
            self._outstanding.add(lane, pending)
            told = partial(self._delivered, lane, pending, on_delivery)
        sent = False
        try:
            sent = self._publisher.try_send(kafka_topic, key, value, headers, told, partition=partition)
        finally:
            if pending is not None and not sent:
                self._outstanding.withdraw(lane, pending)
        if sent and asked.sequence is None:
            self._sequence = sequence
        return sent, None if pending is None else pending.future

    def _delivered(self, lane: Lane, pending: Pending, also: Delivered | None, error: Stop | None) -> None:
        """What Kafka did not take gets no ack: its future fails with what went wrong."""
        if error is None:
            self._outstanding.delivered(lane, pending)
        else:
            self._outstanding.withdraw(lane, pending, error)
        if also is not None:
            also(error)

    def _watch(self, topic: str) -> None:
        """Begin to read the topic's acks, before the first command that asks for one is sent."""
        if topic in self._watched:
            return
        with self._watching:
            if topic in self._watched:
                return
            ack_topic = self._kafka_names.topic(topic, "ack")
            ends = self._admin.end_offsets(ack_topic, range(self._lookup.partitions(ack_topic)))
            positions = [Position(ack_topic, partition, end) for partition, end in ends.items()]
            self._reader.watch(topic, positions, frozenset((self._name.encode(), self._own_name.encode())))
            self._watched.add(topic)
