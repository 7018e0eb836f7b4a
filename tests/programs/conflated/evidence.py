"""The evidence of a run, one partition at a time: the underlying topic's updates and their deliveries."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Message


class Update(NamedTuple):
    """One record of the underlying SOW topic."""

    offset: int
    """Its offset in the underlying SOW topic."""
    timestamp_ms: int
    """Time when it was sent."""
    version: int
    """The version in its header."""
    value: bytes | None
    """The record; None for a delete."""


class Delivery(NamedTuple):
    """One record of the conflated topic: on its SOW or its delta topic."""

    offset: int
    """Its offset in that Kafka topic."""
    timestamp_ms: int
    """Time when it was sent."""
    arrived_ms: float | None
    """Time when the reader received it; None: the reader never did."""
    value: bytes | None
    """The record or the delta; None for a delete on the SOW topic."""
    headers: Mapping[str, str]
    """All its headers."""

    @property
    def source(self) -> int:
        """The underlying topic's offset of the last update in it."""
        return int(self.headers["source"].rpartition("/")[2])

    @property
    def folded(self) -> int:
        """The number of updates folded into it."""
        return int(self.headers.get("conflated", "1"))

    @property
    def first_ms(self) -> int:
        """The time when the first update in it was sent."""
        return int(self.headers["first_timestamp"])

    @property
    def is_delete(self) -> bool:
        """Return whether the key is deleted."""
        return self.headers.get("kind") in ("delete", "expire")

    @property
    def is_at_once(self) -> bool:
        """Return whether its publisher requested no conflation."""
        return self.headers.get("no_conflate") == "true"


class Evidence(NamedTuple):
    """All records of one partition, by key and in order."""

    updates: Mapping[bytes, list[Update]]
    """The updates of the underlying topic."""
    sow: Mapping[bytes, list[Delivery]]
    """The records of the conflated topic."""
    delta: Mapping[bytes, list[Delivery]]
    """The deltas of the conflated topic."""
    is_disturbed: bool = False
    """Whether workers were killed."""
    is_complete: bool = True
    """Whether every record that the reader received during the run could still be read afterwards."""


class Place(NamedTuple):
    """The location of one partition's evidence."""

    bootstrap: str
    """The broker."""
    underlying: str
    """The underlying topic."""
    copy: str
    """The conflated topic."""
    partition: int
    """The number of the partition in all three Kafka topics."""
    came: Mapping[str, Mapping[int, float]]
    """The arrival time of each record of the copy's topics, by topic and offset, in milliseconds since the epoch."""
    is_disturbed: bool
    """Whether workers were killed."""


def gather(place: Place) -> Evidence:
    """Read one partition of the three topics."""
    bootstrap, underlying, copy, partition, came_by, is_disturbed = place
    updates: dict[bytes, list[Update]] = defaultdict(list)
    for message in committed(bootstrap, f"{underlying}.sow", partition):
        version = next(int(value) for name, value in message.headers() or () if name == "version")
        update = Update(message.offset() or 0, message.timestamp()[1], version, message.value())
        updates[message.key() or b""].append(update)
    outputs: list[dict[bytes, list[Delivery]]] = []
    is_complete = True
    for topic in (f"{copy}.sow", f"{copy}.delta"):
        came = dict(came_by[topic])
        deliveries: dict[bytes, list[Delivery]] = defaultdict(list)
        for message in committed(bootstrap, topic, partition):
            offset = message.offset() or 0
            headers = {name: (value or b"").decode() for name, value in message.headers() or ()}
            delivery = Delivery(offset, message.timestamp()[1], came.pop(offset, None), message.value(), headers)
            deliveries[message.key() or b""].append(delivery)
        is_complete = is_complete and not came
        outputs.append(deliveries)
    return Evidence(updates, *outputs, is_disturbed=is_disturbed, is_complete=is_complete)


def committed(bootstrap: str, topic: str, partition: int) -> Iterator[Message]:
    """Every committed record of a partition, up to its current end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
                         "auto.offset.reset": "earliest", "isolation.level": "read_committed",
                         "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        while True:
            for message in consumer.consume(10_000, 0.1):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return
                yield message
    finally:
        consumer.close()
