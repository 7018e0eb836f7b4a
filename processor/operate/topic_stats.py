"""Counts the records of a SOW topic: how many there are, their bytes, and the offsets that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader, oldest_offsets, read_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.config import Config


class PartitionStats(NamedTuple):
    """The figures of one partition."""

    partition: int
    """Its number."""
    records: int
    """Records now: keys whose last record is no delete; those whose time is over count until a worker expires them."""
    record_bytes: int
    """Their keys and values, uncompressed, without headers."""
    largest_bytes: int
    """The largest of them."""
    offsets: int
    """Offsets from the oldest one kept to the end: what a reader of the snapshot goes through."""
    updated_ms: int | None
    """The time of the newest record, milliseconds since the epoch; None: there is no record."""


def topic_stats(config: Config, name: str, *, on_read: Callable[[int], None] = lambda _: None) -> list[PartitionStats]:
    """Read a SOW topic, and count. Memory: about a hundred bytes for each key.

    Args:
        config: the settings.
        name: a topic of the settings, or a conflated one.
        on_read: called with the number of records of each batch.

    Raises:
        ConfigurationError: the topic does not exist, or keeps no records.
        Stop: it cannot be read.
    """
    if not config.topic(name).sow:
        raise ConfigurationError(f"{name!r} keeps no records to count (sow: false)")
    sow = config.kafka_names.topic(name, "sow")
    admin = Admin(config.kafka, config.connect_timeout_s)
    partitions = admin.partitions_of(sow)
    if partitions is None:
        raise ConfigurationError(f"the Kafka topic {sow} does not exist; `sowstream topics apply` creates it")
    reader = LogReader(config.kafka, group=f"{config.group_prefix}.client.stats")
    try:
        begins = oldest_offsets(reader, sow, range(partitions))
        ends = admin.end_offsets(sow, range(partitions))
        sizes: dict[int, dict[bytes, int]] = {partition: {} for partition in range(partitions)}
        updated_ms: dict[int, int] = {}
        for partition, batch in read_range(reader, sow, begins, ends):
            on_read(len(batch))
            of_partition = sizes[partition]
            for message in batch:
                key, value = message.key() or b"", message.value()
                if value is None:
                    of_partition.pop(key, None)
                else:
                    of_partition[key] = len(key) + len(value)
            updated_ms[partition] = batch[-1].timestamp()[1]
    finally:
        reader.close()
    return [
        PartitionStats(
            partition=number,
            records=len(sizes[number]),
            record_bytes=sum(sizes[number].values()),
            largest_bytes=max(sizes[number].values(), default=0),
            offsets=ends[number] - begins[number],
            updated_ms=updated_ms.get(number),
        )
        for number in range(partitions)
    ]
