"""Copies the SOW records of a topic, and the marks of its publishers' numbers, to a topic of other partitions.

The old topics have no writer meanwhile, and the new ones no reader: so a copy that died half-way is made again
from the beginning, over what is there. Versions, times of expiry and the publishers' headers stay.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from processor.errors import Stop
from processor.kafka.clients.publisher import Publisher
from processor.kafka.partitioner import partition_for
from processor.store.marks import TransactionalMarks
from processor.wire.forwarding import moved_mark
from processor.wire.publisher_mark import mark_text
from processor.wire.record_headers import copied_headers, renumbered, version_of

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
        self.used = 0
        """A version above which lives can begin: none of the records has it or ends above it, `_above` included."""
        self.forgotten = 0
        """Number of marks that a new partition has no room for: those that were not changed for longest."""

    def copy_records(self, old: str, new: str) -> None:
        """Copy a SOW topic.

        A key is in one partition of the new topic only. In each old partition its last record by offset counts. Where
        several have one that is live, the record in the key's own partition stays, unless another one is newer: as
        `sowstream topics heal` decides.

        Raises:
            Stop: there are too many such keys, or Kafka refuses.
        """
        strays: dict[tuple[bytes, int], Record] = {}
        for partition, batch in self._batches(old):
            last = {record.key: record for record in batch if record.key is not None}
            self.used = max([self.used, *(2 + (version_of(record.headers) or 0) for record in batch)])
            at_home = []
            for key, record in last.items():
                if partition_for(key, self._partitions) == partition:
                    at_home.append(record)
                else:
                    strays[key, partition] = record
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
        """Copy the marks of publishers: each new partition may get commands from each old one.

        Raises:
            Stop: Kafka refuses.
        """
        last: dict[bytes, Record] = {}
        for partition, batch in self._batches(old):
            for record in batch:
                if record.key is not None and (name := moved_mark(record.key, partition)) is not None:
                    last[name] = record
        marks = {name: record for name, record in last.items() if record.value is not None}
        oldest_first = sorted(marks, key=lambda name: marks[name].timestamp_ms)
        texts = [(name, mark_text(name, marks[name].value, marks[name].headers)) for name in oldest_first]
        self.forgotten = TransactionalMarks().restore(texts, 0).total()
        for name in oldest_first:
            for number in range(self._new_partitions):
                self._publisher.send(new, name, marks[name].value, marks[name].headers, partition=number)
        self._publisher.flush()

    def _without_home(self, old: str, strays: dict[tuple[bytes, int], Record]) -> Iterable[Record]:
        """The records of keys with a copy in a foreign partition; not those whose record was copied rightly before."""
        copies: defaultdict[bytes, list[Record]] = defaultdict(list)
        for (key, _), record in sorted(strays.items()):
            copies[key].append(record)
        homes: dict[bytes, Record] = {}
        for partition, batch in self._batches(old):
            for record in batch:
                if (
                    record.key is not None
                    and record.key in copies
                    and partition_for(record.key, self._partitions) == partition
                ):
                    homes[record.key] = record
        for key, foreign in copies.items():
            home = homes.get(key)
            every = foreign if home is None else [home, *foreign]
            # The first of several that are as new, which is the one at home.
            newest = max((one for one in every if one.value is not None), key=_timestamp_ms, default=None)
            if newest is not None and (kept := _above(newest, every)) is not home:
                yield kept

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


def _timestamp_ms(record: Record) -> int:
    return record.timestamp_ms


def _above(record: Record, copies: Iterable[Record]) -> Record:
    """Give a record a version above those of all other copies of its key, as none may come twice."""
    highest = max((version_of(copy.headers) or 0 for copy in copies if copy is not record), default=0)
    if (version_of(record.headers) or 0) > highest:
        return record
    return record._replace(headers=renumbered(record.headers or [], highest + 1))
