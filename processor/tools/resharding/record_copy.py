"""Copies the SOW records of a topic, and the marks of its publishers' numbers, to a topic of other partitions.

The old topics have no writer meanwhile, and the new ones no reader: so a copy that died half-way is made again
from the beginning, over what is there. Versions, times of expiry and the publishers' headers stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import Stop
from processor.kafka.partitioner import partition_for
from processor.kafka.producers.publisher import Publisher
from processor.wire.came_in import moved_mark
from processor.wire.sow_headers import copied_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from processor.client.feeds.snapshot_boundary import SnapshotBoundary
    from processor.record import Record

STRAYS_MAX: Final = 1_000_000
"""Most keys in another partition than Java's hash chooses; they wait in memory until the others are copied."""


class RecordCopy:
    """One copy of one topic. One thread only."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        cut: Callable[[str], SnapshotBoundary],
        *,
        partitions: int,
        new_partitions: int,
        on_copied: Callable[[int], None],
    ) -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            cut: opens an old topic up to its end, by its Kafka name.
            partitions: the number of partitions of the old topics.
            new_partitions: that of the new ones.
            on_copied: called with the number of records of each batch.
        """
        self._cut = cut
        self._publisher = Publisher(kafka)
        self._partitions, self._new_partitions = partitions, new_partitions
        self._on_copied = on_copied
        self.records = 0
        """Number of SOW records that were written."""

    def copy_records(self, old: str, new: str) -> None:
        """Copy a SOW topic.

        A key is in one partition of the new topic only. Where the old one had it in two, the record in the key's own
        partition stays, unless another one is newer: as `sowstream topics heal` decides.

        Raises:
            Stop: there are too many such keys, or Kafka refuses.
        """
        strays: dict[bytes, Record] = {}
        for partition, batch in self._batches(old):
            last = {record.key: record for record in batch if record.key is not None}
            at_home = []
            for key, record in last.items():
                if partition_for(key, self._partitions) == partition:
                    at_home.append(record)
                elif (other := strays.get(key)) is None or other.value is None or _is_newer(record, other):
                    strays[key] = record
            if len(strays) > STRAYS_MAX:
                raise Stop(
                    f"{old}: more than {STRAYS_MAX:,} keys are in another partition than Java's hash chooses; "
                    "`sowstream topics heal` first"
                )
            self._write(new, at_home)
        if strays:
            self._write(new, self._without_home(old, strays))
        self._publisher.flush()

    def copy_marks(self, old: str, new: str) -> None:
        """Copy the highest numbers of publishers: each new partition may get commands from each old one.

        Raises:
            Stop: Kafka refuses.
        """
        last: dict[bytes, bytes | None] = {}
        for partition, batch in self._batches(old):
            for record in batch:
                if record.key is not None and (name := moved_mark(record.key, partition)) is not None:
                    last[name] = record.value
        for name, value in last.items():
            if value is not None:
                for number in range(self._new_partitions):
                    self._publisher.send(new, name, value, partition=number)
        self._publisher.flush()

    def _without_home(self, old: str, strays: dict[bytes, Record]) -> Iterable[Record]:
        """The records of keys that are in a foreign partition alone, or are newer there than in their own."""
        homes: dict[bytes, Record] = {}
        for partition, batch in self._batches(old):
            for record in batch:
                if record.key in strays and partition_for(record.key, self._partitions) == partition:
                    homes[record.key] = record
        for key, record in strays.items():
            home = homes.get(key)
            if record.value is not None and (home is None or home.value is None or _is_newer(record, home)):
                yield record

    def _batches(self, topic: str) -> Iterable[tuple[int, list[Record]]]:
        cut = self._cut(topic)
        try:
            yield from cut.between({}, cut.ends)
        finally:
            cut.close()

    def _write(self, topic: str, records: Iterable[Record]) -> None:
        count = 0
        for record in records:
            self._publisher.send(topic, record.key, record.value, copied_headers(record.headers))
            count += 1
        self.records += count
        self._on_copied(count)


def _is_newer(record: Record, other: Record) -> bool:
    return record.timestamp_ms > other.timestamp_ms
