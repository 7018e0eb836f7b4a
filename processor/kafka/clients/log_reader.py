"""Reads partitions from given offsets up to their end, outside any group: for restores, snapshots and checks."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from processor.errors import BrokerUnavailable, PartitionHeld, Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.message import Message, by_partition, with_readable_headers
from processor.kafka.outage import Renewal, leave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_LOOK_TIMEOUT_S: Final = 1.0
STALL_TIMEOUT_S: Final = 60.0
"""Longest time without a record or the end of a partition, where more is known to be there."""

BOUNDED_FETCH_WAIT_MS: Final = 5
"""For a reader that ends at a boundary: a topic ends in a transaction's marker, and the end is reported only after the
broker has waited for a record behind it. With an open transaction, the broker is asked so often until it ends.
"""
OFFSET_BEGINNING = -2  # librdkafka's RD_KAFKA_OFFSET_BEGINNING: the oldest record kept.


class Position(NamedTuple):
    """A place in a partition."""

    topic: str
    """The Kafka topic."""
    partition: int
    """The partition number."""
    offset: int
    """The next offset to read."""


class ReadResult(NamedTuple):
    """The result of one read."""

    messages: list[Message]
    """Committed records, in order per partition."""
    ends: list[Position]
    """Partitions without a further record for now, with the least offset that the next record can have."""


class LogReader:
    """A reader that assigns itself partitions. One thread only.

    The end-of-partition event marks the end of a partition: a position passes neither transaction markers nor compacted
    records, so comparing it with the end may never succeed.
    """

    def __init__(
        self, kafka: Mapping[str, str], *, group: str, collects_trouble: bool = False, fetch_wait_ms: int | None = None
    ) -> None:
        """Create a reader.

        Args:
            kafka: librdkafka properties.
            group: the consumer group of `committed` and `group_metadata`; it is never joined.
            collects_trouble: whether partitions that cannot be read on are left to `take_troubled`, and `read` goes on
                with the others instead of raising.
            fetch_wait_ms: how long a broker may wait for a further record before it reports an end; None: 100 ms.
                `BOUNDED_FETCH_WAIT_MS` is for a reader that does not follow a topic past its present end.
        """
        self.group = group
        """The consumer group."""
        self._properties = properties.log_reader(kafka, group=group, fetch_wait_ms=fetch_wait_ms)
        self._bears_trouble = collects_trouble
        self._consumer = Consumer(self._properties)
        self._troubled: dict[tuple[str, int], PartitionHeld | Stop] = {}
        self._begun: dict[tuple[str, int], int] = {}  # The assigned partitions, with the offsets where they began.
        self._renewal = Renewal(self._look, self.renew)

    def add(self, positions: Iterable[Position]) -> None:
        """Read these partitions too."""
        added = list(positions)
        self._begun |= {(position.topic, position.partition): position.offset for position in added}
        self._consumer.incremental_assign([TopicPartition(*position) for position in added])

    def remove(self, topic: str, partition: int) -> None:
        """Read a partition no more."""
        self._begun.pop((topic, partition), None)
        self._consumer.incremental_unassign([TopicPartition(topic, partition)])

    def renew(self) -> None:
        """Reconnect, and go on in each partition after the last record that was read: the broker may be dead."""
        properties.log.warning("no answer from Kafka; reading with a new connection")
        places = self._consumer.position([TopicPartition(*where) for where in self._begun]) if self._begun else []
        begun = {(place.topic, place.partition): place.offset for place in places if place.offset >= 0}
        self._begun |= begun
        former, self._consumer = self._consumer, Consumer(self._properties)
        leave(former, former.close)
        self._consumer.incremental_assign([TopicPartition(*where, offset) for where, offset in self._begun.items()])

    def read(self, records_max: int, timeout_s: float) -> ReadResult:
        """The next records.

        Raises:
            Stop: a partition cannot be read on, and the reader does not bear it.
        """
        consumed = self._consumer.consume(records_max, timeout_s)
        with_readable_headers(consumed)
        if not any(map(Message.error, consumed)):  # The usual case, without a step in Python for each message.
            return ReadResult(consumed, [])
        messages: list[Message] = []
        ends: list[Position] = []
        for message in consumed:
            error = message.error()
            if error is None:
                messages.append(message)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if error.code() == KafkaError._PARTITION_EOF:
                assert topic is not None
                assert partition is not None
                assert offset is not None
                ends.append(Position(topic, partition, offset))
            elif not kafka_errors.passes(error):
                trouble = kafka_errors.of_partition(error, topic, partition, offset, self.group)
                if not self._bears_trouble or topic is None or partition is None:
                    raise (trouble if isinstance(trouble, Stop) else Stop(str(trouble))) from KafkaException(error)
                self._troubled[topic, partition] = trouble
        return ReadResult(messages, ends)

    def take_troubled(self) -> dict[tuple[str, int], PartitionHeld | Stop]:
        """The topics and partitions that cannot be read on, with the reason, since the last call."""
        if not self._troubled:
            return self._troubled
        troubled, self._troubled = self._troubled, {}
        return troubled

    def committed(self, topic: str, partition: int, timeout_s: float) -> int | None:
        """Fetch the group's committed offset, or None if it has none; see `committed_with_note`."""
        return self.committed_with_note(topic, partition, timeout_s)[0]

    def committed_with_note(self, topic: str, partition: int, timeout_s: float) -> tuple[int | None, str | None]:
        """Fetch the group's committed offset and its offset metadata, or None if it has none.

        Waits while an undecided transaction holds the offset.

        Raises:
            TimeoutError: it was not decided in time; ask again.
            Stop: Kafka refuses, as without a right to the group.
        """
        question = f"committed offset of {topic} partition {partition}"
        try:
            (committed,) = self._consumer.committed([TopicPartition(topic, partition)], timeout_s)
        except KafkaException as error:
            if kafka_errors.passes(kafka_errors.of(error)):
                if not self._begun:
                    # Without the right to the group, librdkafka looks for its coordinator again and again, and delivers
                    # the refusal only to those who read.
                    self.read(1, 0)
                self._renewal.unanswered(question)
                raise TimeoutError from None
            raise kafka_errors.stop(
                error, f"asking for the committed offset of {topic} partition {partition}"
            ) from error
        if committed.error is not None:
            if committed.error.retriable():
                raise TimeoutError
            raise kafka_errors.stop(
                committed.error, f"asking for the committed offset of {topic} partition {partition}"
            )
        self._renewal.answered(question)
        return (committed.offset if committed.offset >= 0 else None), committed.metadata or None

    def group_metadata(self) -> Any:
        """The proof for a transaction that commits offsets of the group, which must have no members."""
        return self._consumer.consumer_group_metadata()

    def bounds(self, topic: str, partition: int, timeout_s: float) -> tuple[int, int]:
        """Fetch the oldest offset kept, and the end that readers of committed records see.

        The topic exists, as the caller has its partitions: a broker that does not know it has just started.

        Raises:
            TimeoutError: no answer in time; ask again.
            Stop: Kafka refuses.
        """
        question = f"ends of {topic} partition {partition}"
        try:
            bounds = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        except KafkaException as error:
            if kafka_errors.passes(kafka_errors.of(error)) or kafka_errors.is_unknown(error):
                self._renewal.unanswered(question)
                raise TimeoutError from None
            raise kafka_errors.stop(error, f"asking for the ends of {topic} partition {partition}") from error
        # While a leader is changing, librdkafka may answer with an invalid offset (-1001).
        if bounds is None:
            raise TimeoutError
        if min(bounds) < 0:
            self._renewal.unanswered(question)
            raise TimeoutError
        self._renewal.answered(question)
        return bounds

    def at_time(self, topic: str, partitions: Iterable[int], time_ms: int, timeout_s: float) -> dict[int, int | None]:
        """Fetch the offset of the first record of each partition with this time or a later one; None: there is none.

        Args:
            topic: the Kafka topic.
            partitions: the partition numbers.
            time_ms: milliseconds since the epoch.
            timeout_s: longest wait.

        Raises:
            TimeoutError: no answer in time; ask again.
            Stop: Kafka refuses.
        """
        asked = [TopicPartition(topic, partition, time_ms) for partition in partitions]
        try:
            positions = self._consumer.offsets_for_times(asked, timeout=timeout_s)
        except KafkaException as error:
            if kafka_errors.passes(kafka_errors.of(error)):
                raise TimeoutError from None
            raise kafka_errors.stop(error, f"asking {topic} for the offsets of a time") from error
        return {position.partition: position.offset if position.offset >= 0 else None for position in positions}

    def behind(self, topic: str, partition: int, offset: int) -> int:
        """The number of offsets between a position and the end, as far as it is known without a request."""
        _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
        return max(0, end - offset)

    def close(self) -> None:
        """Close the connection."""
        self._begun.clear()
        self._consumer.close()

    def _look(self) -> None:
        """Ask any broker for leaders and coordinators. Not on another thread: a consumer may be closed meanwhile."""
        with contextlib.suppress(KafkaException):  # This broker does not answer either.
            self._consumer.list_topics(timeout=_LOOK_TIMEOUT_S)


_READ_MAX: Final = 10_000
_WAIT_S: Final = 0.1  # Longest wait in one call, so that Ctrl-C takes effect.
_ASK_TIMEOUT_S: Final = 15.0
_RETRY_S: Final = 0.1


def oldest_offsets(reader: LogReader, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """The oldest offset kept of each partition.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    try:
        return {partition: reader.bounds(topic, partition, _ASK_TIMEOUT_S)[0] for partition in partitions}
    except TimeoutError:
        raise BrokerUnavailable(
            f"reading {topic}: no answer in {_ASK_TIMEOUT_S:g} s; `sowstream doctor` looks closer"
        ) from None


Answer = TypeVar("Answer")


_DOCTOR: Final = "`sowstream doctor` looks closer"


def patiently(ask: Callable[[], Answer], question: str, patience_s: float = 30.0, *, advice: str = _DOCTOR) -> Answer:
    """Repeat a request of a reader until it has an answer, as while an undecided transaction holds an offset.

    Args:
        ask: makes the request, and raises `TimeoutError` where it had no answer in its own time.
        question: the request, for the error: "asking about orders.publish".
        patience_s: when to give up.
        advice: what to do then, for the error.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except TimeoutError:
            if time.monotonic() > deadline_s:
                raise BrokerUnavailable(f"{question}: no answer in {patience_s:g} s; {advice}") from None
        time.sleep(_RETRY_S)  # It may have been refused at once.


class StallTimer:
    """The time for which reads have made no progress, without the time of the caller between them."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._waited_s = 0.0

    def is_over(self, began_s: float, *, has_moved: bool) -> bool:
        """Count one read; returns whether reads have brought nothing for longer than the limit.

        Args:
            began_s: the monotonic time at which it began.
            has_moved: whether it has brought a record or the end of a partition.
        """
        self._waited_s = 0.0 if has_moved else self._waited_s + time.monotonic() - began_s
        return self._waited_s > self._limit_s


def read_range(
    reader: LogReader,
    topic: str,
    begins: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> Iterator[tuple[int, list[Message]]]:
    """The committed records of a range, in batches of one partition each, in order per partition.

    Args:
        reader: reads none of these partitions.
        topic: the Kafka topic.
        begins: the first offset of each partition.
        ends: the offset after the last one of each partition, open transactions included.
        stall_timeout_s: longest time of reads without a record or the end of a partition.

    Raises:
        Stop: a partition cannot be read, or there was no progress for too long.
    """
    todo = {partition: end for partition, end in ends.items() if end > begins[partition]}
    reader.add(Position(topic, partition, begins[partition]) for partition in todo)
    stall = StallTimer(stall_timeout_s)
    while todo:
        began_s = time.monotonic()
        # Reading many at once would wait until there are as many.
        messages: list[Message] = []
        reached: dict[int, int] = {}
        for read in (reader.read(1, _WAIT_S), reader.read(_READ_MAX, 0)):
            messages += read.messages
            # The end of a partition may consist of markers and aborted records only, for which no message arrives.
            reached |= {position.partition: position.offset for position in read.ends}
        if stall.is_over(began_s, has_moved=bool(messages or reached)):
            raise Stop(_stalled(topic, todo, stall_timeout_s))
        for partition, batch in by_partition(messages).items():
            last = batch[-1].offset() or 0
            reached[partition] = max(reached.get(partition, 0), last + 1)
            end = ends[partition]
            yield partition, batch if last < end else [message for message in batch if (message.offset() or 0) < end]
        for partition, offset in reached.items():
            if partition in todo and offset >= todo[partition]:
                del todo[partition]
                reader.remove(topic, partition)


def read_up_to(reader: LogReader, topic: str, ends: Mapping[int, int], *, stall_timeout_s: float) -> list[Message]:
    """Every committed record of a small topic up to these ends, by partition; closes the reader afterwards.

    Raises:
        BrokerUnavailable: no answer in time.
        Stop: Kafka refuses, or the topic cannot be read to its end in time.
    """
    try:
        begins = oldest_offsets(reader, topic, ends)
        batches = read_range(reader, topic, begins, ends, stall_timeout_s=stall_timeout_s)
        return [message for _, batch in batches for message in batch]
    finally:
        reader.close()


def _stalled(topic: str, todo: Iterable[int], stall_timeout_s: float) -> str:
    partitions = ", ".join(str(partition) for partition in sorted(todo))
    return (
        f"reading {topic}: nothing came from partition {partitions} for {stall_timeout_s:g} s, though there is more. A "
        "transaction that is open holds readers back. Try again in a minute: Kafka ends what a dead worker left open. "
        "What is open for longer, `sowstream transactions list` finds"
    )
