"""Finds partitions whose readers wait for an open transaction, and reads the decisions of transaction coordinators.

The decisions stand in the coordinators' own log, the Kafka topic `__transaction_state`.
Kafka first writes there that a transaction is to be committed or rolled back, and only then the markers into its
partitions. A coordinator reports only the last transaction of a transactional id; the log also has earlier ones, as far
as it was not compacted.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.errors import BrokerUnavailable, Stop
from processor.installation.acls import TRANSACTION_STATE
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.groups import ask_offsets
from processor.kafka.message import with_readable_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from confluent_kafka import Message

    from processor.kafka.admin.groups import OffsetKind


_ASK_TIMEOUT_S: Final = 15.0
_READ_TIMEOUT_S: Final = 30.0
_WAIT_S: Final = 0.2


class OpenRange(NamedTuple):
    """The records at the end of a partition that readers of committed records do not get."""

    topic: str
    """The Kafka topic."""
    partition: int
    """The partition number."""
    begin: int
    """The last stable offset: where the first open transaction begins."""
    end: int
    """The offset after the last record."""
    since_ms: int
    """Timestamp of the first record of the open transaction, milliseconds since the epoch; -1: unknown."""

    @property
    def place(self) -> str:
        """The text for people: `orders.sow partition 3`."""
        return f"{self.topic} partition {self.partition}"


def open_ranges(kafka: Mapping[str, str], places: Iterable[tuple[str, int]], *, group: str) -> list[OpenRange]:
    """The partitions in which a transaction is open now, whether it is just running or was abandoned.

    Args:
        kafka: librdkafka properties.
        places: topics and partition numbers; the topics exist.
        group: the name of the reader to the brokers; the group is never joined.

    Raises:
        BrokerUnavailable: no answer in time.
        Stop: Kafka refuses.
    """
    wanted = list(places)
    if not wanted:
        return []
    client = AdminClient(properties.admin(kafka))
    # In this order: if a transaction ends in between, the stable offset is not before that end any more.
    ends = _offsets(client, wanted, "end")
    stable = _offsets(client, wanted, "stable_end")
    behind = {place: (stable[place], end) for place, end in ends.items() if stable[place] < end}
    if not behind:
        return []
    first = {(topic, number): begin for (topic, number), (begin, _) in behind.items()}
    since_ms: dict[tuple[str, int], int] = {}
    for message in read_uncommitted(kafka, first, {place: begin + 1 for place, begin in first.items()}, group=group):
        since_ms.setdefault((message.topic() or "", message.partition() or 0), message.timestamp()[1])
    return [
        OpenRange(topic, number, begin, end, since_ms.get((topic, number), -1))
        for (topic, number), (begin, end) in sorted(behind.items())
    ]


def read_uncommitted(
    kafka: Mapping[str, str],
    begins: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    *,
    group: str,
) -> Iterator[Message]:
    """The records of ranges of partitions, including those of open and rolled back transactions.

    Args:
        kafka: librdkafka properties.
        begins: the first offset of each partition.
        ends: the offset after the last one.
        group: the name of the reader to the brokers; the group is never joined.

    Raises:
        BrokerUnavailable: no record arrives for half a minute.
        Stop: a partition cannot be read.
    """
    todo = {place: end for place, end in ends.items() if end > begins[place]}
    reader = Consumer(properties.log_reader(kafka, group=group) | {"isolation.level": "read_uncommitted"})
    try:
        reader.assign([TopicPartition(*place, begins[place]) for place in todo])
        moved_s = time.monotonic()
        while todo:
            message = reader.poll(_WAIT_S)
            if message is None:
                if time.monotonic() - moved_s > _READ_TIMEOUT_S:
                    raise BrokerUnavailable(f"reading {next(iter(todo))[0]}: nothing came for {_READ_TIMEOUT_S:g} s")
                continue
            place = message.topic() or "", message.partition() or 0
            error, offset = message.error(), message.offset() or 0
            if error is not None and not _is_end(error) and not kafka_errors.passes(error):
                raise kafka_errors.stop(error, f"reading {place[0]} partition {place[1]}") from KafkaException(error)
            if place not in todo or (error is not None and not _is_end(error)):
                continue
            moved_s = time.monotonic()
            if error is None and offset < todo[place]:
                yield from with_readable_headers([message])
            if (offset if error is not None else offset + 1) >= todo[place]:
                del todo[place]
    finally:
        reader.close()


def _is_end(error: KafkaError) -> bool:
    return error.code() == KafkaError._PARTITION_EOF


def _offsets(client: AdminClient, places: Iterable[tuple[str, int]], kind: OffsetKind) -> dict[tuple[str, int], int]:
    questions = ask_offsets(client, places, kind, _ASK_TIMEOUT_S)
    return {place: question.answer() for place, question in questions.items()}


_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT = 1, 2, 3  # Kafka's TransactionState.
_VERSION_TAG: Final = 2  # ClientTransactionVersion of TransactionLogValue.


class TransactionLogEntry(NamedTuple):
    """One entry of the log: the state of a transactional id after a change."""

    transactional_id: str
    """The owner of the transaction."""
    producer_id: int
    """Kafka's number of the producer."""
    epoch: int
    """The producer's epoch after the change."""
    status: int
    """Kafka's number of the state."""
    places: frozenset[tuple[str, int]]
    """Topics and partitions of the transaction so far."""
    updated_ms: int
    """The time of the change, by the coordinator's clock, milliseconds since the epoch."""
    transaction_version: int
    """The version of the producer's transaction protocol; 0 if the entry has none."""


class Decision(NamedTuple):
    """A coordinator's decision to commit a transaction or roll it back."""

    producer_id: int
    """Kafka's number of the producer."""
    epoch: int
    """The epoch of the transaction's records."""
    marker_epoch: int
    """The epoch of its markers: a later one if Kafka fences the producer as it ends the transaction."""
    transaction_version: int
    """The version of the producer's transaction protocol."""
    is_commit: bool
    """True if its records become visible."""
    places: frozenset[tuple[str, int]]
    """Its topics and partitions."""
    decided_ms: int
    """The time of the decision, by the coordinator's clock, milliseconds since the epoch."""


def decisions_of(
    kafka: Mapping[str, str], transactional_id: str, *, since_ms: int, partitions: int, group: str
) -> list[Decision]:
    """Read the coordinator's decisions about the transactions of a transactional id, oldest first.

    Args:
        kafka: librdkafka properties.
        transactional_id: the owner of the transactions.
        since_ms: earlier decisions are not needed, milliseconds since the epoch.
        partitions: the number of partitions of the coordinators' log.
        group: the name of the reader to the brokers; the group is never joined.

    Raises:
        BrokerUnavailable: no answer in time.
        ConfigurationError: we are not allowed to read the log.
        Stop: it has entries of an unknown version.
    """
    place = TRANSACTION_STATE, partition_of(transactional_id, partitions)
    begin, end = _bounds(kafka, place, since_ms, group)
    entries = []
    for message in read_uncommitted(kafka, {place: begin}, {place: end}, group=group):
        key, value = message.key(), message.value()
        if key is not None and value is not None and _id_of(key) == transactional_id:
            entries.append(read_entry(transactional_id, value))
    return list(decisions(entries))


def decisions(entries: Iterable[TransactionLogEntry]) -> Iterator[Decision]:
    """The decisions among the entries of one transactional id, in the order of the log."""
    running: TransactionLogEntry | None = None
    for entry in entries:
        if entry.status == _ONGOING:
            running = entry
        elif entry.status in (_PREPARE_COMMIT, _PREPARE_ABORT):
            # When a producer times out, Kafka fences it by a later epoch, and ends its transaction with that one.
            epoch = running.epoch if running and running.producer_id == entry.producer_id else entry.epoch
            yield Decision(
                entry.producer_id,
                epoch,
                entry.epoch,
                entry.transaction_version,
                entry.status == _PREPARE_COMMIT,
                entry.places,
                entry.updated_ms,
            )
            running = None


def partition_of(name: str, partitions: int) -> int:
    """The partition of one of Kafka's own topics for a transactional id or a group: Java's hash of the name."""
    number = 0
    data = name.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFFFFFF
    signed = number - (1 << 32) if number >> 31 else number
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def read_entry(transactional_id: str, value: bytes) -> TransactionLogEntry:
    """Parse the value of an entry: Kafka's TransactionLogValue, version 0 or 1.

    Raises:
        Stop: the entry is of a newer version, or damaged.
    """
    reader = _Fields(value)
    try:
        version = reader.number(">h")
        if version not in (0, 1):
            raise Stop(
                f"{TRANSACTION_STATE} has entries of version {version}, which this version of Sowstream cannot read; "
                "upgrade Sowstream"
            )
        is_flexible = version == 1
        producer_id, epoch = reader.number(">q"), reader.number(">h")
        reader.number(">i")  # The transaction's timeout.
        status = reader.number(">b")
        places = frozenset(reader.places(is_flexible=is_flexible))
        updated_ms = reader.number(">q")
        reader.number(">q")  # When it began.
        tags = reader.tags() if is_flexible else {}
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Stop(f"{TRANSACTION_STATE} has an entry for {transactional_id} that is damaged: {error}") from error
    protocol = tags.get(_VERSION_TAG, b"")
    return TransactionLogEntry(
        transactional_id, producer_id, epoch, status, places, updated_ms, int.from_bytes(protocol) if protocol else 0
    )


class _Fields:
    """Reads the fields of a value, one after the other, in the encoding of Kafka's protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """One number of fixed size."""
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(number)

    def varint(self) -> int:
        """An unsigned number of seven bits per byte."""
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def take(self, size: int) -> bytes:
        """The next bytes, as many as `size`."""
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise IndexError(f"{size} bytes are missing at {self._at}")
        self._at += size
        return taken

    def places(self, *, is_flexible: bool) -> Iterator[tuple[str, int]]:
        """Topics with their partitions; in flexible versions a size is encoded as size + 1."""
        for _ in range(self._size(">i", is_flexible=is_flexible)):
            topic = self.take(self._size(">h", is_flexible=is_flexible)).decode()
            for _ in range(self._size(">i", is_flexible=is_flexible)):
                yield topic, self.number(">i")
            if is_flexible:
                self.tags()

    def tags(self) -> dict[int, bytes]:
        """The tagged fields of a structure."""
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}

    def _size(self, form: str, *, is_flexible: bool) -> int:
        """A size; empty and null are both 0."""
        return max(0, self.varint() - 1 if is_flexible else self.number(form))


def _id_of(key: bytes) -> str | None:
    """The transactional id of a key: TransactionLogKey, version 0."""
    if len(key) < 4 or key[:2] != b"\0\0":
        return None
    return key[4:].decode(errors="replace")


def _bounds(kafka: Mapping[str, str], place: tuple[str, int], since_ms: int, group: str) -> tuple[int, int]:
    """The first offset of this time, and the end."""
    reader = Consumer(properties.log_reader(kafka, group=group))
    try:
        first, end = reader.get_watermark_offsets(TopicPartition(*place), timeout=_ASK_TIMEOUT_S)
        (since,) = reader.offsets_for_times([TopicPartition(*place, since_ms)], timeout=_ASK_TIMEOUT_S)
    except KafkaException as error:
        raise kafka_errors.stop(error, f"reading {place[0]} partition {place[1]}") from error
    finally:
        reader.close()
    if since.error is not None:
        raise kafka_errors.stop(since.error, f"reading {place[0]} partition {place[1]}")
    if not end and not first:
        raise BrokerUnavailable(f"reading {place[0]} partition {place[1]}: it has no entries")
    return (max(first, since.offset) if since.offset >= 0 else end), end
