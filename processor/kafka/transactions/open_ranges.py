"""Finds partitions whose readers wait: an open transaction keeps the last stable offset before the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from processor.errors import BrokerUnavailable
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.message import with_readable_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from confluent_kafka import Message

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
    wanted = [TopicPartition(*place) for place in places]
    if not wanted:
        return []
    client = AdminClient(properties.common(kafka))
    # In this order: if a transaction ends in between, the stable offset is not before that end any more.
    ends = _offsets(client, wanted, IsolationLevel.READ_UNCOMMITTED)
    stable = _offsets(client, wanted, IsolationLevel.READ_COMMITTED)
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


def _offsets(
    client: AdminClient, places: Iterable[TopicPartition], level: IsolationLevel
) -> dict[tuple[str, int], int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = client.list_offsets(dict.fromkeys(places, latest), isolation_level=level, request_timeout=_ASK_TIMEOUT_S)
    offsets = {}
    for place, future in asked.items():
        try:
            offsets[place.topic, place.partition] = future.result().offset
        except KafkaException as error:
            raise kafka_errors.stop(
                error, f"asking for the end of {place.topic} partition {place.partition}"
            ) from error
    return offsets
