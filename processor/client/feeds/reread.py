"""Reads the records of some keys again, for a subscription that has missed their deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from processor.client.feeds.compact_records import CompactRecords
from processor.client.feeds.snapshot_boundary import SnapshotBoundary

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from processor.kafka.admin.admin import Admin
    from processor.record import Record

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
