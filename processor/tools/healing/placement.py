"""The place of a key: its canonical text, and the partition that the hash of that text chooses. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.kafka.partitioner import partition_for

if TYPE_CHECKING:
    from processor.merge import KeyFields
    from processor.record import Headers


class Copy(NamedTuple):
    """The record of a key in one partition of the SOW topic."""

    key: bytes
    """The Kafka record key in its spelling there."""
    partition: int
    """The partition."""
    offset: int
    """Its offset in the SOW topic, which identifies the record."""
    timestamp_ms: int
    """Kafka's record timestamp, milliseconds since the epoch."""
    version: int
    """The version in header `version`."""
    value: bytes
    """The encoded record."""
    headers: Headers
    """The headers of the SOW record."""


class Homes:
    """The partitions of a topic's keys."""

    def __init__(self, key: KeyFields, partitions: int) -> None:
        """Set the key fields and the number of partitions of a topic."""
        self._canonical = key.canonical
        self._has_one_spelling = len(key.pointers) < 2
        self._partitions = partitions

    def own_key(self, key: bytes) -> bytes:
        """The canonical text of the key; a key that cannot be parsed is its own canonical text."""
        return key if self._has_one_spelling else self._canonical(key) or key

    def partition(self, own_key: bytes) -> int:
        """The partition of a canonical key."""
        return partition_for(own_key, self._partitions)

    def has(self, key: bytes, partition: int) -> bool:
        """Return whether a key is in its canonical spelling and in its own partition."""
        return (self._has_one_spelling or self.own_key(key) == key) and partition_for(
            key, self._partitions
        ) == partition
