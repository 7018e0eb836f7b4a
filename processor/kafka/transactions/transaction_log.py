"""Reads what transaction coordinators have decided, from their own log: the Kafka topic `__transaction_state`.

Kafka writes there first that a transaction is to be committed or rolled back, and only then the markers in its
partitions. What a coordinator tells of a transactional id is the last transaction only; the log has those before it
too, as far as it was not compacted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from processor.errors import BrokerUnavailable, Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.transactions.open_ranges import read_uncommitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TRANSACTION_STATE: Final = "__transaction_state"
"""The coordinators' log: a partition for each share of the transactional ids."""

GROUP_OFFSETS: Final = "__consumer_offsets"
"""Kafka's own topic with the positions of consumer groups, which transactions write to."""

_ASK_TIMEOUT_S: Final = 15.0
_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT = 1, 2, 3  # Kafka's TransactionState.
_VERSION_TAG: Final = 2  # ClientTransactionVersion of TransactionLogValue.


class Entry(NamedTuple):
    """One entry of the log: the state of a transactional id after a change."""

    transactional_id: str
    """Whose transaction."""
    producer_id: int
    """Kafka's number of the producer."""
    epoch: int
    """The producer's epoch after the change."""
    status: int
    """Kafka's number of the state."""
    places: frozenset[tuple[str, int]]
    """Topics and partitions that belong to the transaction so far."""
    updated_ms: int
    """When it changed, by the coordinator's clock, milliseconds since the epoch."""
    transaction_version: int
    """Of the protocol that the producer speaks; 0 where it is not told."""


class Decision(NamedTuple):
    """That a transaction is to be committed, or rolled back."""

    producer_id: int
    """Kafka's number of the producer."""
    epoch: int
    """The epoch that the transaction's records have."""
    marker_epoch: int
    """The epoch that its markers have: a later one where Kafka fences the producer as it ends the transaction."""
    transaction_version: int
    """Of the protocol that the producer speaks."""
    is_commit: bool
    """Whether its records are to be seen."""
    places: frozenset[tuple[str, int]]
    """Its topics and partitions."""
    decided_ms: int
    """When, by the coordinator's clock, milliseconds since the epoch."""


def decisions_of(
    kafka: Mapping[str, str], transactional_id: str, *, since_ms: int, partitions: int, group: str
) -> list[Decision]:
    """What the coordinator has decided of the transactions of a transactional id, oldest first.

    Args:
        kafka: librdkafka properties.
        transactional_id: whose.
        since_ms: what was decided before needs not be told, milliseconds since the epoch.
        partitions: how many the coordinators' log has.
        group: the name of the reader to the brokers; the group is never joined.

    Raises:
        BrokerUnavailable: no answer in time.
        ConfigurationError: Kafka does not let us read the log.
        Stop: it has entries that we do not understand.
    """
    place = TRANSACTION_STATE, partition_of(transactional_id, partitions)
    begin, end = _bounds(kafka, place, since_ms, group)
    entries = []
    for message in read_uncommitted(kafka, {place: begin}, {place: end}, group=group):
        key, value = message.key(), message.value()
        if key is not None and value is not None and _id_of(key) == transactional_id:
            entries.append(read_entry(transactional_id, value))
    return list(decisions(entries))


def decisions(entries: Iterable[Entry]) -> Iterator[Decision]:
    """The decisions among the entries of one transactional id, in the order of the log."""
    running: Entry | None = None
    for entry in entries:
        if entry.status == _ONGOING:
            running = entry
        elif entry.status in (_PREPARE_COMMIT, _PREPARE_ABORT):
            # Kafka fences a producer by a later epoch when it times out, and ends its transaction with that one.
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
    """The partition of one of Kafka's own topics that has a transactional id or a group: Java's hash of the name."""
    number = 0
    data = name.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFFFFFF
    signed = number - (1 << 32) if number >> 31 else number
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def read_entry(transactional_id: str, value: bytes) -> Entry:
    """Understand the value of an entry: Kafka's TransactionLogValue, version 0 or 1.

    Raises:
        Stop: it is of a newer version, or damaged.
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
    return Entry(
        transactional_id, producer_id, epoch, status, places, updated_ms, int.from_bytes(protocol) if protocol else 0
    )


class _Fields:
    """The fields of a value, one after the other, as Kafka's protocol writes them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """One number of fixed size."""
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(number)

    def varint(self) -> int:
        """An unsigned number of seven bits a byte."""
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def take(self, size: int) -> bytes:
        """So many bytes."""
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise IndexError(f"{size} bytes are missing at {self._at}")
        self._at += size
        return taken

    def places(self, *, is_flexible: bool) -> Iterator[tuple[str, int]]:
        """Topics with their partitions; sizes are one more than they say where the version is flexible."""
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
        """A size; nothing and null are both 0."""
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
