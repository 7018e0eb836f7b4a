"""Reads the SOW topic for keys in wrong places, and keeps only these in memory.

A key in two partitions is in at least one that its hash does not choose. So a scan keeps nothing about a key in its own
partition, and a topic without misplaced keys costs no memory at any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

from processor.kafka.readers.log_reader import LogReader
from processor.kafka.readers.range_reader import oldest_offsets, read_range
from processor.tools.healing.placement import Copy
from processor.wire.sow_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.record import Headers
    from processor.tools.healing.placement import Homes

KEYS_MAX: Final = 100_000
"""Most misplaced keys that are kept at a time: about 300 bytes each, besides key and value."""
VALUES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of keys and records that are kept at a time."""
STALL_TIMEOUT_S: Final = 60.0


class Misplaced(NamedTuple):
    """The result of a scan."""

    copies: dict[tuple[bytes, int], int]
    """Live records in wrong places: key and partition, and their size in bytes."""
    is_cut: bool
    """True if there are more than were kept."""
    looked: int
    """Offsets that were read."""
    total: int
    """Offsets that the topic has."""


class SowLog:
    """The SOW topic of one family. One thread only."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, *, topic: str, partitions: int, group: str) -> None:
        """Connect to a topic.

        Args:
            kafka: librdkafka properties.
            admin: administration of the same cluster.
            topic: the Kafka topic.
            partitions: the number of its partitions.
            group: the name of the reader to the brokers; the group is never joined.
        """
        self.topic = topic
        self.partitions = range(partitions)
        self._admin = admin
        self._reader = LogReader(kafka, group=group)
        self._ends: dict[int, int] = {}

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def find_misplaced(
        self, homes: Homes, *, newest_max: int | None = None, on_read: Callable[[int], None] = lambda _: None
    ) -> Misplaced:
        """Scan the topic for records in wrong places.

        Args:
            homes: where keys belong.
            newest_max: the number of offsets to read, the newest ones; None: all. A record found among the newest is
                live all the same, as the last record of a key comes after all others.
            on_read: called with the number of records, batch by batch.

        Raises:
            Stop: the topic cannot be read.
        """
        begins = oldest_offsets(self._reader, self.topic, self.partitions)
        self._ends = self._admin.end_offsets(self.topic, self.partitions)
        total = sum(self._ends[partition] - begins[partition] for partition in self.partitions)
        if newest_max is not None:
            share = newest_max // len(self.partitions)
            begins = {partition: max(begin, self._ends[partition] - share) for partition, begin in begins.items()}
        looked = sum(self._ends[partition] - begins[partition] for partition in self.partitions)
        copies: dict[tuple[bytes, int], int] = {}
        size_bytes, is_cut, has = 0, False, homes.has
        for partition, batch in read_range(
            self._reader, self.topic, begins, self._ends, stall_timeout_s=STALL_TIMEOUT_S
        ):
            on_read(len(batch))
            for message in batch:
                key = message.key()
                if key is None or has(key, partition):
                    continue
                place, value = (key, partition), message.value()
                size_bytes -= copies.pop(place, 0)
                if value is None:
                    continue
                if len(copies) >= KEYS_MAX or size_bytes >= VALUES_BYTES_MAX:
                    is_cut = True
                    continue
                copies[place] = len(key) + len(value)
                size_bytes += copies[place]
        return Misplaced(copies, is_cut, looked, total)

    def copies_of(self, own_keys: Collection[bytes], homes: Homes) -> dict[tuple[bytes, int], Copy]:
        """Every live record of some keys, in all partitions and spellings; `update` continues from there.

        Raises:
            Stop: the topic cannot be read.
        """
        begins = oldest_offsets(self._reader, self.topic, self.partitions)
        self._ends = self._admin.end_offsets(self.topic, self.partitions)
        copies: dict[tuple[bytes, int], Copy] = {}
        self._read(begins, copies, own_keys, homes)
        return copies

    def places_of(self, own_keys: Collection[bytes], homes: Homes) -> set[tuple[bytes, int]]:
        """The key and partition of every live record of some keys, with memory for these only.

        Raises:
            Stop: the topic cannot be read.
        """
        begins = oldest_offsets(self._reader, self.topic, self.partitions)
        places: set[tuple[bytes, int]] = set()
        for partition, batch in read_range(
            self._reader, self.topic, begins, self._ends, stall_timeout_s=STALL_TIMEOUT_S
        ):
            for message in batch:
                key = message.key()
                if key is None or homes.own_key(key) not in own_keys:
                    continue
                if message.value() is None:
                    places.discard((key, partition))
                else:
                    places.add((key, partition))
        return places

    def update(self, copies: dict[tuple[bytes, int], Copy], own_keys: Collection[bytes], homes: Homes) -> None:
        """Read the records that have arrived since, and update the records of these keys in place.

        Raises:
            Stop: the topic cannot be read.
        """
        begins, self._ends = self._ends, self._admin.end_offsets(self.topic, self.partitions)
        self._read(begins, copies, own_keys, homes)

    def _read(
        self,
        begins: Mapping[int, int],
        copies: dict[tuple[bytes, int], Copy],
        own_keys: Collection[bytes],
        homes: Homes,
    ) -> None:
        batches = read_range(self._reader, self.topic, begins, self._ends, stall_timeout_s=STALL_TIMEOUT_S)
        own_key = homes.own_key
        for partition, batch in batches:
            for message in batch:
                key = message.key()
                if key is None or own_key(key) not in own_keys:
                    continue
                if message.value() is None:
                    copies.pop((key, partition), None)
                else:
                    copies[key, partition] = _copy(key, partition, message)


def _copy(key: bytes, partition: int, message: Message) -> Copy:
    headers = cast("Headers", list(message.headers() or ()))
    version = version_of(headers) or 0
    value, offset = message.value() or b"", message.offset() or 0
    return Copy(key, partition, offset, message.timestamp()[1], version, value, headers)
