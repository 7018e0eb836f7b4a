"""A topic's past and future, divided by one cut: no record lies on both sides, none is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from processor.client.subscribe.topic_watch import TopicWatch
from processor.errors import BrokerUnavailable, ConfigurationError, PositionLost, Stop
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.admin import Admin
from processor.kafka.message import Message, by_partition, records
from processor.kafka.readers.log_reader import LogReader, Position, Read
from processor.record import Record
from processor.topics.family import DAY_MS

_READ_MAX: Final = 10_000
_WAIT_S: Final = 0.1  # Longest wait in one call, so that Ctrl-C is heard.
_ASK_TIMEOUT_S: Final = 15.0
_LOOK_TIMEOUT_S: Final = 2.0
_STALL_TIMEOUT_S: Final = 60.0


class Arrived(NamedTuple):
    """What one look behind the cut brought."""

    batches: list[tuple[int, list[Record]]]
    """Partitions with their next committed records, in order."""
    ends: dict[int, int]
    """Partitions that have nothing more for now, with the offset the next record will have at least."""


class Cut:
    """Reads partitions of one topic up to their ends at the moment it was made, and on from there.

    One thread only. A snapshot must be read before the topic's `min.compaction.lag.ms` has passed: later, compaction
    may have taken a record before the cut because of one after it.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        admin: Admin,
        *,
        topic: str,
        partitions: Iterable[int],
        group: str,
        topic_id: str | None = None,
        make: Callable[[Sequence[Message]], list[Record]] = records,
    ) -> None:
        """Cut here and now.

        Args:
            kafka: librdkafka properties.
            admin: tells the ends, open transactions included.
            topic: the Kafka topic.
            partitions: those to read.
            group: how the reader calls itself to the brokers; the group is never joined.
            topic_id: what the topic is: one that is made anew while it is followed is not gone on with. None: nobody
                looks.
            make: makes records of Kafka's messages.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        self.topic = topic
        self.ends = admin.end_offsets(topic, partitions)
        """The end of each partition, as it was then."""
        self._admin = admin
        self._make = make
        self._watch = None if topic_id is None else TopicWatch(admin, topic, topic_id, len(self.ends))
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

    def between(
        self, begins: Mapping[int, int], ends: Mapping[int, int], *, breathes: bool = False
    ) -> Iterator[tuple[int, list[Record]]]:
        """The committed records of some partitions from one offset up to another, with the number of their partition.

        Args:
            begins: the first offset of each partition; without one, the oldest kept.
            ends: the offset after the last one, of each partition to be read; none behind the cut.
            breathes: come back also when nothing is there yet, with an empty batch of any partition.

        Raises:
            Stop: as `before`.
        """
        todo = {partition: end for partition, end in ends.items() if end > begins.get(partition, 0)}
        self._reader.add(
            Position(self.topic, partition, max(begins.get(partition, 0), self.oldest(partition))) for partition in todo
        )
        moved_s = time.monotonic()
        while todo:
            read = self._read(_WAIT_S)
            if read.messages:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > _STALL_TIMEOUT_S:
                raise Stop(self._stalled(todo))
            elif breathes:
                yield next(iter(todo)), []
            # The end of a partition may be markers and aborted records only, which no message tells of.
            reached = {position.partition: position.offset for position in read.ends}
            for partition, messages in by_partition(read.messages).items():
                batch = self._make(messages)
                reached[partition] = max(reached.get(partition, 0), batch[-1].offset + 1)
                end = todo.get(partition, 0)
                if batch[-1].offset >= end:
                    batch = [record for record in batch if record.offset < end]
                yield partition, batch
            for partition, offset in reached.items():
                if partition in todo and offset >= todo[partition]:
                    del todo[partition]
                    self._reader.remove(self.topic, partition)

    def follow(self, begins: Mapping[int, int] | None = None) -> None:
        """Begin to read behind the cut; after `before` has come to its end, or instead of it.

        Args:
            begins: where to begin instead, for each partition.
        """
        begins = self.ends if begins is None else begins
        self._reader.add(Position(self.topic, partition, begin) for partition, begin in begins.items())

    def after(self, timeout_s: float = _WAIT_S) -> Arrived:
        """The next committed records of those that are followed; nothing if none came in time.

        Raises:
            PositionLost: what was to be read next is not there any more, or the topic is another one.
            Stop: a partition cannot be read on.
        """
        if self._watch is not None:
            self._watch.look()
        read = self._read(min(timeout_s, _WAIT_S))
        batches = [(partition, self._make(messages)) for partition, messages in by_partition(read.messages).items()]
        return Arrived(batches, {position.partition: position.offset for position in read.ends})

    def oldest(self, partition: int) -> int:
        """The oldest offset kept, asked for: librdkafka's own OFFSET_BEGINNING takes half a second to find it.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        try:
            return self._reader.bounds(self.topic, partition, _ASK_TIMEOUT_S)[0]
        except TimeoutError:
            raise self._silent(f"about partition {partition}") from None

    def check_pause(self, paused_s: float) -> None:
        """Make sure that no delete can have come and gone while nothing was read: it would never be heard of.

        Raises:
            PositionLost: the topic keeps deletes for a shorter time.
            ConfigurationError: the topic is gone.
            BrokerUnavailable: no answer in time.
        """
        try:
            horizon_ms = self._admin.delete_retention_ms(self.topic)
        except ConfigurationError as error:
            if kafka_errors.is_unknown(error):
                raise
            horizon_ms = DAY_MS  # Whoever may not ask goes by what topics are made with.
        if paused_s * 1000 > horizon_ms:
            raise PositionLost(
                f"reading {self.topic}: nothing was read for {paused_s:,.0f} s, longer than the topic's "
                "delete.retention.ms, so that deletes may be missing; begin again with a snapshot"
            )

    def quiet_ends(self, positions: Mapping[int, int]) -> dict[int, int]:
        """The ends of now of those partitions that have nothing behind these positions; none if Kafka does not say."""
        try:
            ends = self._admin.end_offsets(self.topic, positions, _LOOK_TIMEOUT_S) if positions else {}
        except Stop:
            return {}
        return {partition: end for partition, end in ends.items() if end <= positions[partition]}

    def at_time(self, time_ms: int) -> dict[int, int]:
        """Where each partition has its first record of this time or later: the cut if it has none before it.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        try:
            found = self._reader.at_time(self.topic, self.ends, time_ms, _ASK_TIMEOUT_S)
        except TimeoutError:
            raise self._silent("about the offsets of a time") from None
        places = {partition: found.get(partition) for partition in self.ends}
        return {partition: self.ends[partition] if at is None else at for partition, at in places.items()}

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def _read(self, timeout_s: float) -> Read:
        """What is there; if nothing is, the first that comes. A read for many would wait until it has as many."""
        first = self._reader.read(1, timeout_s)
        more = self._reader.read(_READ_MAX, 0)
        return Read(first.messages + more.messages, first.ends + more.ends)

    def _silent(self, what: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"reading {self.topic}: no answer {what} in {_ASK_TIMEOUT_S:g} s; `sowstream doctor` looks closer"
        )

    def _stalled(self, todo: Mapping[int, int]) -> str:
        partitions = ", ".join(str(partition) for partition in sorted(todo))
        return (
            f"reading {self.topic}: nothing came from partition {partitions} for {_STALL_TIMEOUT_S:g} s, though there "
            "is more. A transaction that is open holds readers back. Try again in a minute: Kafka ends what a dead "
            "worker left open. What is open for longer, `sowstream transactions list` finds; never abort it unseen"
        )
