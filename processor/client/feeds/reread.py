"""Reads the records of some keys again, for a subscription that has missed a delta of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from processor.client.feeds.compact_records import Slim
from processor.client.feeds.snapshot_boundary import Cut

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from processor.kafka.admin.admin import Admin
    from processor.record import Record

_SLACK_MS: Final = 60_000
"""A SOW record is written with its delta; its timestamp may be earlier by a batch, and by a difference of clocks."""


class Reread(NamedTuple):
    """What was read again."""

    records: dict[bytes, Record]
    """The last SOW record of each key that has one, or its tombstone."""
    until: int
    """The end of the partition's delta topic: deltas from there on are not in these records."""


class ReadAgain(Protocol):
    """Reads the last records of keys of one partition."""

    def __call__(self, partition: int, keys: Collection[bytes], since_ms: int) -> Reread:
        """Read them as they are now.

        Args:
            partition: the number.
            keys: the Kafka record keys.
            since_ms: a time since which each of them changed, milliseconds since the epoch; 0 if that is not known.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: the SOW topic cannot be read.
        """


class SowReader:
    """Reads from the SOW topic: its end first, where the keys changed, and all of it for those that are not there."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, *, sow: str, delta: str, group: str) -> None:
        """Connect to nothing yet.

        Args:
            kafka: librdkafka properties.
            admin: asked for the ends of topics.
            sow: the Kafka topic of the full records.
            delta: the Kafka topic of their deltas.
            group: how the reader calls itself to the brokers.
        """
        self._kafka = kafka
        self._admin = admin
        self._sow = sow
        self._delta = delta
        self._group = group

    def __call__(self, partition: int, keys: Collection[bytes], since_ms: int) -> Reread:
        """Read the last records of these keys."""
        cut = Cut(
            self._kafka, self._admin, topic=self._sow, partitions=[partition], group=self._group, make=Slim().records
        )
        try:
            begin = cut.at_time(max(0, since_ms - _SLACK_MS))[partition]
            records = _last(cut, partition, begin, keys)
            if missing := set(keys).difference(records):
                records |= _last(cut, partition, 0, missing)
        finally:
            cut.close()
        # Asked now: a delta that came before the records were read may be in them or not, a later one is not.
        until = self._admin.end_offsets(self._delta, [partition])[partition]
        return Reread(records, until)


def _last(cut: Cut, partition: int, begin: int, keys: Collection[bytes]) -> dict[bytes, Record]:
    """The last record of each of these keys between an offset and the cut."""
    return {
        record.key: record
        for _, batch in cut.between({partition: begin}, cut.ends)
        for record in batch
        if record.key is not None and record.key in keys
    }
