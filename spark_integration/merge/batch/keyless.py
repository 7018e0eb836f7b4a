"""Gives records without a Kafka key the key in their body, as a worker does that sends them to the input again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from processor.kafka.partitioner import partition_for
from spark_integration.merge.host import Host, KeyedState
from spark_integration.merge.rows import headers_column, records

if TYPE_CHECKING:
    from processor.record import Headers, Record
    from spark_integration.settings import TopicSettings

AFTER: Final = 1 << 62
"""The first offset of those that such records get, behind every other."""
_OFFSET_BITS: Final = 46


@dataclass(frozen=True, slots=True)
class Keyed:
    """What a task does to records without a key; travels to the executors."""

    settings: TopicSettings
    """The topic's."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records without a key (`RECORDS_DDL`) to the same with it, in the partition and place where they are merged.

        A worker's copies come behind all that was published before, so these have offsets behind all others. What has
        no key in its body either keeps its place, for the merge to reject.
        """
        codec = self.settings.codec()
        hosts: dict[int, Host] = {}
        for batch in batches:
            partitions = batch.column("partition").to_pylist()
            rows = []
            for record, partition in zip(records(batch), partitions, strict=True):
                host = hosts.get(partition)
                if host is None:
                    host = hosts[partition] = Host(self.settings, partition, KeyedState(), None, codec=codec)
                rows.append(self._sent_again(host, partition, record))
            yield _batch(rows)

    def _sent_again(self, host: Host, partition: int, record: Record) -> tuple[int, Record]:
        """Partition and record as a worker's copy has them."""
        host.process([record], record.timestamp_ms)
        copies = host.take().get("publish")
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
