"""Checks that no delta of a key is missing, and reads the records of keys again for which one is.

Each delta must apply to the version that was delivered last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from processor.client.feeds.compact_records import CompactRecords
from processor.client.feeds.snapshot_boundary import SnapshotBoundary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from processor.kafka.admin.admin import Admin
    from processor.record import Record
    from processor.wire.subscriber_headers import DeltaHeaders


_SLACK_MS: Final = 60_000
"""A SOW record is written with its delta, but its timestamp may differ by a batch, and by the difference of clocks."""


class RereadRecords(NamedTuple):
    """The result of reading some keys again."""

    records: dict[bytes, Record]
    """The last SOW record of each key that has one; it may be a tombstone."""
    until: int
    """The end of the partition's delta topic: these records do not contain deltas from there on."""


class ReadAgain(Protocol):
    """Reads the last records of keys of one partition."""

    def __call__(self, partition: int, keys: Collection[bytes], since_ms: int) -> RereadRecords:
        """Read the current records.

        Args:
            partition: the partition number.
            keys: the Kafka record keys.
            since_ms: a time since which each key has changed, milliseconds since the epoch; 0 if unknown.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: the SOW topic cannot be read.
        """


class RecordReader:
    """Reads from the SOW topic: first its end, where the keys changed, then all of it for keys that are not there."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, *, sow: str, delta: str, group: str) -> None:
        """Create the reader, without connecting.

        Args:
            kafka: librdkafka properties.
            admin: asked for the ends of topics.
            sow: the Kafka topic of the full records.
            delta: the Kafka topic of their deltas.
            group: the reader's name for the brokers.
        """
        self._kafka = kafka
        self._admin = admin
        self._sow = sow
        self._delta = delta
        self._group = group

    def __call__(self, partition: int, keys: Collection[bytes], since_ms: int) -> RereadRecords:
        """Read the last records of these keys."""
        boundary = SnapshotBoundary(
            self._kafka,
            self._admin,
            topic=self._sow,
            partitions=[partition],
            group=self._group,
            make=CompactRecords().records,
        )
        try:
            begin = boundary.at_time(max(0, since_ms - _SLACK_MS))[partition]
            records = _last(boundary, partition, begin, keys)
            if missing := set(keys).difference(records):
                records |= _last(boundary, partition, 0, missing)
        finally:
            boundary.close()
        # Asked after reading: a delta from before may be in the records or not, a later one is not.
        until = self._admin.end_offsets(self._delta, [partition])[partition]
        return RereadRecords(records, until)


def _last(boundary: SnapshotBoundary, partition: int, begin: int, keys: Collection[bytes]) -> dict[bytes, Record]:
    """The last record of each of these keys between an offset and the boundary."""
    return {
        record.key: record
        for _, batch in boundary.between({partition: begin}, boundary.ends)
        for record in batch
        if record.key is not None and record.key in keys
    }


KEYS_MAX: Final = 500_000
"""Limit of the keys of one subscription whose version is remembered: about 50 MB, see `KEY_BYTES`."""
KEY_BYTES: Final = 105
"""Memory of a remembered key of ten bytes: the key, its version and its place in a dictionary; measured."""
_HELD_MAX: Final = 1_000
_NEVER: Final = 2**63


class _Versions:
    """The version delivered last of each key; when there are too many, the half that is older is forgotten."""

    __slots__ = ("_older", "_recent", "_recent_max", "forgotten")

    def __init__(self, keys_max: int) -> None:
        self._recent_max = max(1, keys_max // 2)
        self._recent: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}
        self.forgotten = 0

    def put(self, key: bytes, version: int) -> None:
        """Remember the version of a key."""
        self._recent[key] = version
        if self._older:
            self._older.pop(key, None)
        if len(self._recent) >= self._recent_max:
            self._turn()

    def follow(self, key: bytes, base: int | None, version: int) -> bool:
        """Replace the version of a key if it is `base` or unknown; returns whether it was replaced."""
        recent = self._recent
        held = recent.get(key)
        if held == base:  # The usual case.
            recent[key] = version
            return True
        if held is not None or (self._older and self._older.get(key, base) != base):
            return False
        self.put(key, version)
        return True

    def _turn(self) -> None:
        """Forget the keys that were not delivered recently."""
        self.forgotten += len(self._older)
        self._recent, self._older = {}, self._recent


class _Healed:
    """A key whose record was read again."""

    __slots__ = ("held", "uncertain_ms", "until", "version")

    def __init__(self, version: int | None, until: int) -> None:
        self.version = version
        """The version of the record that was delivered; 0 means no record."""
        self.until = until
        """Deltas from this offset on are newer than the record; earlier ones may be older or newer."""
        self.held: list[Record] = []
        """Deltas before it with a higher version: newer, unless the key was deleted and inserted meanwhile."""
        self.uncertain_ms: int | None = None
        """The time of such a deletion: version numbers then do not show the order, and the record is read once more."""


class Continuity:
    """The check of one partition of a delta topic.

    Each key is in one of these states::

        unknown    no version is known: its next delta is accepted
        followed   its version is known: its next delta must apply to it
        broken     a delta is missing: its deltas are dropped until its record has been read again
        healed     read again: the deltas already in the topic may be older or newer than the record

    The record that is read again may be far ahead of the position in the delta topic, and may belong to a later life of
    the key. In records that a former release wrote, versions began again at 1 after a delete. So the deltas up to the
    end of the topic at that time are judged together. If none begins a life, versions only grow, and those above the
    record's follow it. Otherwise the record is read again at that end.
    """

    def __init__(self, keys_max: int) -> None:
        """Begin with all keys unknown.

        Args:
            keys_max: the limit of remembered keys.
        """
        self.broken: dict[bytes, int] = {}
        """Keys to be read again, with the timestamp of a delta that their record contains; `heal` removes them."""
        self.settles_at = _NEVER
        """The next offset at which older deltas of healed keys can be separated from newer ones, see `settle`."""
        self.position = 0
        """The next offset of the partition."""
        self._versions = _Versions(keys_max)
        self._healed: dict[bytes, _Healed] = {}

    @property
    def forgotten(self) -> int:
        """Number of keys that were dropped, so that their next delta was accepted unchecked."""
        return self._versions.forgotten

    def admits(self, record: Record, headers: DeltaHeaders) -> bool:
        """True if a delta may be delivered: it applies to the version delivered last, or that version is unknown."""
        key = record.key
        if key is None:
            return True
        if self.broken or self._healed:
            if key in self.broken:
                return False
            if (healed := self._healed.get(key)) is not None:
                _hold(healed, record, headers)
                return False
        version = headers.version
        if version is None:
            return True
        if (kind := headers.kind) is None or kind == "update":
            if self._versions.follow(key, headers.base, version):
                return True
            self.broken[key] = record.timestamp_ms
            return False
        self._versions.put(key, version if kind == "insert" else 0)
        return True

    def heal(self, key: bytes, version: int | None, until: int) -> None:
        """Record that a broken key was read again, and which version was delivered.

        Args:
            key: the key.
            version: the record's version; 0 if there is no record; None if it has no version header.
            until: the end of this partition of the delta topic, requested afterwards.
        """
        del self.broken[key]
        self._healed[key] = _Healed(version, until)
        self.settles_at = min(self.settles_at, until)

    def settle(self, position: int) -> list[Record]:
        """End the wait of healed keys at a position; returns the deltas that follow their records, in order.

        Keys whose deltas cannot be ordered become broken again.
        """
        newer: list[Record] = []
        for key, healed in [item for item in self._healed.items() if item[1].until <= position]:
            del self._healed[key]
            if healed.uncertain_ms is not None:
                self.broken[key] = healed.uncertain_ms
                continue
            if healed.version is not None:
                self._versions.put(key, healed.version)
            newer += healed.held
        self.settles_at = min([healed.until for healed in self._healed.values()], default=_NEVER)
        newer.sort(key=_offset)
        return newer


def split(keys_max: int, partitions: Iterable[int]) -> dict[int, Continuity]:
    """The checks of some partitions, which share a limit of keys."""
    numbers = list(partitions)
    return {number: Continuity(keys_max // len(numbers)) for number in numbers}


def _hold(healed: _Healed, record: Record, headers: DeltaHeaders) -> None:
    """Keep a delta of a healed key if it may be newer than its record."""
    if healed.uncertain_ms is not None:
        return
    if headers.begins_life or len(healed.held) >= _HELD_MAX:
        healed.uncertain_ms = record.timestamp_ms
        healed.held = []
    elif headers.version is not None and (healed.version is None or headers.version > healed.version):
        healed.held.append(record)


def _offset(record: Record) -> int:
    return record.offset
