"""A topic's past and future, divided by one cut: no record lies on both sides, none is left out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from processor.errors import BrokerUnavailable, Stop
from processor.kafka.admin import Admin
from processor.kafka.log_reader import LogReader, Position, Read
from processor.kafka.message import by_partition, records
from processor.record import Record

_READ_MAX: Final = 10_000
_WAIT_S: Final = 0.1  # Longest wait in one call, so that Ctrl-C is heard.
_ASK_TIMEOUT_S: Final = 15.0
_STALL_TIMEOUT_S: Final = 60.0


class Cut:
    """Reads partitions of one topic up to their ends at the moment it was made, and on from there.

    One thread only. A snapshot must be read before the topic's `min.compaction.lag.ms` has passed: later, compaction
    may have taken a record before the cut because of one after it.
    """

    def __init__(
        self, kafka: Mapping[str, str], admin: Admin, *, topic: str, partitions: Iterable[int], group: str
    ) -> None:
        """Cut here and now.

        Args:
            kafka: librdkafka properties.
            admin: tells the ends, open transactions included.
            topic: the Kafka topic.
            partitions: those to read.
            group: how the reader calls itself to the brokers; the group is never joined.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        self.topic = topic
        self.ends = admin.end_offsets(topic, partitions)
        """The end of each partition, as it was then."""
        self._reader = LogReader(kafka, group=group)

    def before(self) -> Iterator[list[Record]]:
        """Every committed record before the cut, in order per partition; each batch is of one partition.

        A partition that has come to the cut is taken from the reader, so that what lies behind does not pile up while
        the others catch up; `after` reads it again.

        Raises:
            Stop: a partition cannot be read, or there is no progress for a minute.
        """
        for _, batch in self.between({}, self.ends):
            yield batch

    def between(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[tuple[int, list[Record]]]:
        """The committed records of some partitions from one offset up to another, with the number of their partition.

        Args:
            begins: the first offset of each partition; without one, the oldest kept.
            ends: the offset after the last one, of each partition to be read; none behind the cut.

        Raises:
            Stop: as `before`.
        """
        todo = {partition: end for partition, end in ends.items() if end > begins.get(partition, 0)}
        self._reader.add(
            Position(self.topic, partition, max(begins.get(partition, 0), self._beginning(partition)))
            for partition in todo
        )
        moved_s = time.monotonic()
        while todo:
            read = self._read(_WAIT_S)
            if read.messages:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > _STALL_TIMEOUT_S:
                raise Stop(self._stalled(todo))
            # The end of a partition may be markers and aborted records only, which no message tells of.
            reached = {position.partition: position.offset for position in read.ends}
            for partition, messages in by_partition(read.messages).items():
                batch = records(messages)
                reached[partition] = max(reached.get(partition, 0), batch[-1].offset + 1)
                end = todo.get(partition, 0)
                if batch[-1].offset >= end:
                    batch = [record for record in batch if record.offset < end]
                yield partition, batch
            for partition, offset in reached.items():
                if partition in todo and offset >= todo[partition]:
                    del todo[partition]
                    self._reader.remove(self.topic, partition)

    def follow(self) -> None:
        """Begin to read behind the cut; after `before` has come to its end, or instead of it."""
        self._reader.add(Position(self.topic, partition, end) for partition, end in self.ends.items())

    def after(self, timeout_s: float = _WAIT_S) -> list[Record]:
        """The next committed records behind the cut, in order per partition; empty if none came in time.

        Raises:
            Stop: a partition cannot be read on.
        """
        batches = by_partition(self._read(min(timeout_s, _WAIT_S)).messages).values()
        return [record for batch in batches for record in records(batch)]

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def _read(self, timeout_s: float) -> Read:
        """What is there; if nothing is, the first that comes. A read for many would wait until it has as many."""
        first = self._reader.read(1, timeout_s)
        more = self._reader.read(_READ_MAX, 0)
        return Read(first.messages + more.messages, first.ends + more.ends)

    def _beginning(self, partition: int) -> int:
        """The oldest offset kept, asked for: librdkafka's own OFFSET_BEGINNING takes half a second to find it."""
        try:
            return self._reader.bounds(self.topic, partition, _ASK_TIMEOUT_S)[0]
        except TimeoutError:
            raise BrokerUnavailable(
                f"reading {self.topic}: no answer about partition {partition} in {_ASK_TIMEOUT_S:g} s; "
                "`sowstream doctor` looks closer"
            ) from None

    def _stalled(self, todo: Mapping[int, int]) -> str:
        partitions = ", ".join(str(partition) for partition in sorted(todo))
        return (
            f"reading {self.topic}: nothing came from partition {partitions} for {_STALL_TIMEOUT_S:g} s, though there "
            "is more. A transaction that somebody left open holds readers back until the broker ends it: wait and try "
            "again, or find it with Kafka's kafka-transactions find-hanging"
        )
