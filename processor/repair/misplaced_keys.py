"""Looks for keys in wrong partitions without changing anything: for `topics check`, `topics heal` and `doctor`.

A key in two partitions is in at least one that its hash does not choose. So a scan keeps nothing about a key in its own
partition, and a topic without misplaced keys costs no memory at any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

from processor.kafka.clients.log_reader import LogReader, oldest_offsets, read_range
from processor.kafka.partitioner import partition_for
from processor.merge import KeyFields
from processor.topics import Problem
from processor.wire.record_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from processor.config import Config
    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
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


KEYS_MAX: Final = 100_000
"""Most misplaced keys that are kept at a time: about 300 bytes each, besides key and value."""
VALUES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of keys and records that are kept at a time."""


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
        for partition, batch in read_range(self._reader, self.topic, begins, self._ends):
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
        self._ends = oldest_offsets(self._reader, self.topic, self.partitions)
        copies: dict[tuple[bytes, int], Copy] = {}
        self.update(copies, own_keys, homes)
        return copies

    def places_of(self, own_keys: Collection[bytes], homes: Homes) -> set[tuple[bytes, int]]:
        """The key and partition of every live record of some keys, with memory for these only.

        Raises:
            Stop: the topic cannot be read.
        """
        places: set[tuple[bytes, int]] = set()
        begins = oldest_offsets(self._reader, self.topic, self.partitions)
        for key, partition, message in self._records_of(own_keys, homes, begins):
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
        for key, partition, message in self._records_of(own_keys, homes, begins):
            if message.value() is None:
                copies.pop((key, partition), None)
            else:
                copies[key, partition] = _copy(key, partition, message)

    def _records_of(
        self, own_keys: Collection[bytes], homes: Homes, begins: Mapping[int, int]
    ) -> Iterator[tuple[bytes, int, Message]]:
        """The records of some keys, deletes included, from offsets on to the ends: key, partition and message."""
        own_key = homes.own_key
        for partition, batch in read_range(self._reader, self.topic, begins, self._ends):
            for message in batch:
                key = message.key()
                if key is not None and own_key(key) in own_keys:
                    yield key, partition, message


def _copy(key: bytes, partition: int, message: Message) -> Copy:
    headers = cast("Headers", list(message.headers() or ()))
    version = version_of(headers) or 0
    value, offset = message.value() or b"", message.offset() or 0
    return Copy(key, partition, offset, message.timestamp()[1], version, value, headers)


NEWEST_MAX: Final = 50_000
"""Offsets of a topic that a short look reads."""


class KeyCheck(NamedTuple):
    """The result of checking the keys of one topic."""

    topic: str
    """The Kafka topic."""
    problem: Problem | None
    """The problem of keys in wrong partitions; None if there are none."""
    extent: str
    """The part of the topic that was read, for people."""


def checkable_topics(config: Config) -> list[str]:
    """The topics in which each key has one partition: published to, and without `foreign_partition: accept`."""
    return [name for name, topic in config.topics.items() if topic.foreign_partition != "accept"]


def check_keys(
    config: Config,
    admin: Admin,
    name: str,
    *,
    newest_max: int | None = NEWEST_MAX,
    on_read: Callable[[int], None] = lambda _: None,
) -> KeyCheck | None:
    """Look for keys in partitions that their hash does not choose; None if the topic does not exist.

    Args:
        config: the settings.
        admin: administration of the cluster.
        name: a topic that publishers write to.
        newest_max: the number of offsets to read, the newest ones; None: all.
        on_read: called with the number of records of each batch.

    Raises:
        Stop: the topic cannot be read.
    """
    sow = config.kafka_names.topic(name, "sow")
    partitions = admin.cluster().topics.get(sow)
    if partitions is None:
        return None
    homes = Homes(KeyFields(config.topics[name].key_fields), partitions)
    log = SowLog(config.kafka, admin, topic=sow, partitions=partitions, group=f"{config.group_prefix}.{name}")
    try:
        misplaced = log.find_misplaced(homes, newest_max=newest_max, on_read=on_read)
        extent = f"{misplaced.looked:,} of {misplaced.total:,} offsets read"
        if misplaced.looked < misplaced.total:
            extent += ", the newest"
        if not misplaced.copies:
            return KeyCheck(sow, None, extent)
        own_keys = {homes.own_key(key) for key, _ in misplaced.copies}
        places: dict[bytes, set[int]] = {}
        for key, partition in log.places_of(own_keys, homes):
            places.setdefault(homes.own_key(key), set()).add(partition)
    finally:
        log.close()
    return KeyCheck(sow, _problem(name, sow, places, extent, is_cut=misplaced.is_cut), extent)


def _problem(name: str, sow: str, places: dict[bytes, set[int]], extent: str, *, is_cut: bool) -> Problem:
    twice = [key for key, partitions in places.items() if len(partitions) > 1]
    example = min(twice or places)
    where = " and ".join(map(str, sorted(places[example])))
    least = "at least " if is_cut or "newest" in extent else ""
    text = (
        f"has {least}{len(twice):,} keys in two partitions" if twice else "has no key in two partitions"
    ) + f", and {len(places) - len(twice):,} in a wrong place only"
    what = f"{text} ({extent}), such as {example.decode(errors='replace')!r} in partition {where}"
    to_do = f"sowstream topics heal {name}; producers need murmur2 (librdkafka: partitioner=murmur2_random)"
    return Problem("warn", sow, what, to_do)
