"""Moves records to their own key and partition, as a worker does that forwards them to its input.

These are records without a Kafka key, whose key is in the body, and records of a key that belongs to another partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from processor.kafka.partitioner import partition_for
from spark_integration.foundation.arrow_records import headers_column, records
from spark_integration.merge.partition_merge import KeyedState, PartitionMerge

if TYPE_CHECKING:
    from processor.record import Headers, Record
    from spark_integration.foundation.settings import TopicSettings

AFTER: Final = 1 << 62
"""The first offset for moved records, after every other offset."""
_OFFSET_BITS: Final = 46


@dataclass(frozen=True, slots=True)
class Keyed:
    """Moves the records of one task; pickled for the executors."""

    settings: TopicSettings
    """The settings of the topic."""
    partitions: int | None
    """Number of partitions that keys are hashed over; None: records with a key stay where they are."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert records (`RECORDS_DDL`) to the same records under their own key, partition and offset.

        A worker's copies come after all records published before, so moved records get offsets after all others. A
        record that a worker would reject keeps its place, so that the merge rejects it.
        """
        codec, partitions = self.settings.codec(), self.partitions
        merges: dict[int, PartitionMerge] = {}
        for batch in batches:
            numbers = batch.column("partition").to_pylist()
            rows = []
            for record, number in zip(records(batch), numbers, strict=True):
                if record.key is not None and (partitions is None or partition_for(record.key, partitions) == number):
                    rows.append((number, record))
                    continue
                merge = merges.get(number)
                if merge is None:
                    state = KeyedState()
                    merge = PartitionMerge(self.settings, number, state, None, codec=codec, partitions=partitions or 1)
                    merges[number] = merge
                rows.append(self._forwarded(merge, number, record))
            yield _batch(rows)

    def _forwarded(self, merge: PartitionMerge, partition: int, record: Record) -> tuple[int, Record]:
        """The partition and the record of a worker's copy."""
        merge.process([record], record.timestamp_ms)
        copies = merge.take().get("publish")
        if not copies:
            return partition, record
        key, _, headers = copies[0]
        assert key is not None
        place = AFTER + (partition << _OFFSET_BITS) + record.offset
        return partition_for(key, self.settings.topic.partitions), record._replace(
            key=key, headers=headers or None, offset=place
        )


def _batch(rows: list[tuple[int, Record]]) -> pa.RecordBatch:
    headers: list[Headers] = [record.headers or [] for _, record in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for _, record in rows], pa.binary()),
            pa.array([record.value for _, record in rows], pa.binary()),
            headers_column(headers),
            pa.array([partition for partition, _ in rows], pa.int32()),
            pa.array([record.offset for _, record in rows], pa.int64()),
            pa.array([record.timestamp_ms for _, record in rows], pa.int64()),
        ],
        names=["key", "value", "headers", "partition", "offset", "timestamp_ms"],
    )
