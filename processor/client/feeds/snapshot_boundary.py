"""The boundary between a topic's snapshot and its updates: each record lies on exactly one side.

A topic must keep its identity while it is read: librdkafka goes on reading a recreated topic at the old offset, without
any error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, cast

from processor.errors import BrokerUnavailable, ConfigurationError, PositionLost, Stop, TopicMoved
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.questions import Question
from processor.kafka.clients.log_reader import (
    BOUNDED_FETCH_WAIT_MS,
    STALL_TIMEOUT_S,
    LogReader,
    Position,
    ReadResult,
    StallTimer,
)
from processor.kafka.message import Message, by_partition, records
from processor.record import Headers, Record
from processor.topics.family import DAY_MS
from processor.wire.forwarding import MOVED_RETENTION_MS, RESERVED, moved_to

INTERVAL_S: Final = 5.0
"""Time between two checks; each is one request to one broker."""
_IDENTITY_TIMEOUT_S: Final = 5.0
_CHECKS: Final = 2  # A broker that has just started may still describe the topic as it was before.


class IdentityWatch:
    """Requests the description of a topic now and then, without waiting for the answer. One thread only."""

    def __init__(self, admin: Admin, topic: str, topic_id: str, partitions: int) -> None:
        """Watch a topic.

        Args:
            admin: sends the requests.
            topic: the Kafka topic.
            topic_id: its expected id.
            partitions: its expected number of partitions.
        """
        self._admin = admin
        self._topic = topic
        self._expected = topic_id, partitions
        self._question: Question[tuple[str, int]] | None = None
        self._next_s = time.monotonic() + INTERVAL_S
        self._others = 0

    def check(self) -> None:
        """Evaluate the answer to the last request, or send the next one when it is due.

        Raises:
            PositionLost: the topic was recreated, or has another number of partitions.
        """
        now_s = time.monotonic()
        if self._question is None:
            if now_s >= self._next_s:
                self._question = self._admin.ask_topic(self._topic, _IDENTITY_TIMEOUT_S)
            return
        if not self._question.is_answered:
            return
        question, self._question = self._question, None
        self._next_s = now_s + INTERVAL_S
        try:
            description = question.answer()
        except Stop:  # No answer is no problem: the reader itself reports a topic that is gone.
            description = self._expected
        if description == self._expected:
            self._others = 0
            return
        self._others += 1
        if self._others >= _CHECKS:
            problem = "was recreated" if description[0] != self._expected[0] else f"has {description[1]} partitions now"
            raise PositionLost(f"reading {self._topic}: the topic {problem}; begin again with a snapshot")
        self._next_s = now_s + INTERVAL_S / 5


_READ_MAX: Final = 10_000
_WAIT_S: Final = 0.1  # Longest wait in one call, so that Ctrl-C is noticed.
_ASK_TIMEOUT_S: Final = 15.0
_LOOK_TIMEOUT_S: Final = 2.0
_TAIL_RECORDS: Final = 16
_value_of: Final = itemgetter(1)  # By number: twice as fast.


class FetchedBatches(NamedTuple):
    """The result of one read after the boundary."""

    batches: list[tuple[int, list[Record]]]
    """Partitions with their next committed records, in order."""
    ends: dict[int, int]
    """Partitions without further records for now, with the lowest possible offset of the next one."""
    silent_s: float = 0.0
    """The longest time for which one of these partitions had not been read, nor was known to have nothing more."""


class SnapshotBoundary:
    """The end offsets of a topic's partitions at one moment, and a reader of the records before and after them.

    One thread only. A snapshot must be read before the topic's `min.compaction.lag.ms` has passed: later, compaction
    may have removed a record before the boundary because of one after it.
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
        follows: bool = True,
        has_marks: bool = True,
    ) -> None:
        """Fix the boundary at the current ends.

        Args:
            kafka: librdkafka properties.
            admin: asked for the ends, open transactions included.
            topic: the Kafka topic.
            partitions: the partitions to read.
            group: the reader's name for the brokers; the group is never joined.
            topic_id: the topic's id: following stops with an error when the topic is recreated. None: not checked.
            make: converts Kafka's messages to records.
            follows: whether records after the boundary are read, too. Without, reaching the boundary is quicker.
            has_marks: whether it is a SOW or delta topic, in which a mark says that another one has taken its place.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        self.topic = topic
        self.ends = admin.end_offsets(topic, partitions)
        """The end offset of each partition at the boundary."""
        self._admin = admin
        self._make = make
        self._has_marks = has_marks
        self._moved_to = ""
        self._lasts: dict[int, int] = {}  # The offset of the mark in each partition, once the topic has moved.
        # When each partition was last known to be read on, by the wall clock: others stand in a suspended machine.
        self._current_s: dict[int, float] = {}
        self._watch = None if topic_id is None else IdentityWatch(admin, topic, topic_id, len(self.ends))
        self._reader = LogReader(kafka, group=group, fetch_wait_ms=None if follows else BOUNDED_FETCH_WAIT_MS)

    def before(self) -> Iterator[list[Record]]:
        """Every committed record before the boundary, in order per partition; each batch is of one partition.

        A partition that has reached the boundary is removed from the reader, so that later records do not pile up
        while the others catch up; `after` reads it again.

        Raises:
            Stop: a partition cannot be read, or there is no progress for a minute.
        """
        for _, batch in self.between({}, self.ends):
            yield batch

    def between(
        self, begins: Mapping[int, int], ends: Mapping[int, int], *, breathes: bool = False
    ) -> Iterator[tuple[int, list[Record]]]:
        """The committed records of some partitions between two offsets, in batches with the partition number.

        Args:
            begins: the first offset of each partition; default is the oldest kept.
            ends: the offset after the last one, of each partition to read; none after the boundary.
            breathes: yield also when nothing has arrived yet: an empty batch of any partition.

        Raises:
            TopicMoved: another topic has taken its place.
            Stop: as `before`.
        """
        todo = {partition: end for partition, end in ends.items() if end > begins.get(partition, 0)}
        self._reader.add(
            Position(self.topic, partition, max(begins.get(partition, 0), self.oldest(partition))) for partition in todo
        )
        stall = StallTimer(STALL_TIMEOUT_S)
        while todo:
            began_s = time.monotonic()
            read = self._read(_WAIT_S)
            if stall.is_over(began_s, has_moved=bool(read.messages or read.ends)):
                raise Stop(self._stalled(todo))
            if breathes and not read.messages:
                yield next(iter(todo)), []
            # A partition may end in markers and aborted records only, which make no messages.
            reached = {position.partition: position.offset for position in read.ends}
            for partition, messages in by_partition(read.messages).items():
                batch = self._records(partition, messages)
                reached[partition] = max(reached.get(partition, 0), (messages[-1].offset() or 0) + 1)
                end = todo.get(partition, 0)
                if batch and batch[-1].offset >= end:
                    batch = [record for record in batch if record.offset < end]
                yield partition, batch
            for partition, offset in reached.items():
                if partition in todo and offset >= todo[partition]:
                    del todo[partition]
                    self._reader.remove(self.topic, partition)
        if self._lasts:
            raise TopicMoved(self.topic, self._moved_to)

    def follow(self, begins: Mapping[int, int] | None = None) -> None:
        """Begin to read after the boundary; call it when `before` is exhausted, or without `before`.

        Args:
            begins: other offsets to begin at, by partition.
        """
        begins = self.ends if begins is None else begins
        self._note_current(begins)
        self._reader.add(Position(self.topic, partition, begin) for partition, begin in begins.items())

    def after(self, timeout_s: float = _WAIT_S) -> FetchedBatches:
        """The next committed records of the followed partitions; no batches if none came in time.

        Raises:
            PositionLost: the next record is not kept any more, or the topic was recreated.
            TopicMoved: another topic has taken its place; all records of this one were returned.
            Stop: a partition cannot be read on.
        """
        if self._lasts and len(self._lasts) == len(self.ends):
            raise TopicMoved(self.topic, self._moved_to)
        if self._watch is not None:
            self._watch.check()
        read = self._read(min(timeout_s, _WAIT_S))
        messages_of = by_partition(read.messages)
        batches = [
            (partition, batch)
            for partition, messages in messages_of.items()
            if (batch := self._records(partition, messages))
        ]
        ends = {position.partition: position.offset for position in read.ends}
        silent_s = self._note_current([*messages_of, *ends])
        ends = {number: min(end, self._lasts.get(number, end)) for number, end in ends.items()}
        return FetchedBatches(batches, ends, silent_s)

    def oldest(self, partition: int) -> int:
        """The oldest offset kept, by a request: librdkafka's own OFFSET_BEGINNING takes half a second to find it.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        try:
            return self._reader.bounds(self.topic, partition, _ASK_TIMEOUT_S)[0]
        except TimeoutError:
            raise self._no_answer(f"about partition {partition}") from None

    def check_pause(self, paused_s: float) -> None:
        """Check that no delete can have been written and compacted away while nothing was read.

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
            horizon_ms = DAY_MS  # Without the right to ask: the value that topics are created with.
        if paused_s * 1000 > horizon_ms:
            raise PositionLost(
                f"reading {self.topic}: nothing was read for {paused_s:,.0f} s, longer than the topic's "
                "delete.retention.ms, so that deletes may be missing; begin again with a snapshot"
            )

    def quiet_ends(self, positions: Mapping[int, int]) -> dict[int, int]:
        """The current ends of the partitions without records after these positions; empty if Kafka does not answer."""
        try:
            ends = self._admin.end_offsets(self.topic, positions, _LOOK_TIMEOUT_S) if positions else {}
        except Stop:
            return {}
        quiet = {partition: end for partition, end in ends.items() if end <= positions[partition]}
        self._note_current(quiet)
        return quiet

    def at_time(self, time_ms: int) -> dict[int, int]:
        """The offset of each partition's first record of this time or later; the boundary if there is none before it.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        try:
            offsets = self._reader.at_time(self.topic, self.ends, time_ms, _ASK_TIMEOUT_S)
        except TimeoutError:
            raise self._no_answer("about the offsets of a time") from None
        places = {partition: offsets.get(partition) for partition in self.ends}
        return {partition: self.ends[partition] if at is None else at for partition, at in places.items()}

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def _note_current(self, partitions: Iterable[int]) -> float:
        """Note that partitions are read on; returns the longest time since that was last noted of one of them."""
        now_s, silent_s = time.time(), 0.0
        for partition in partitions:
            silent_s = max(silent_s, now_s - self._current_s.get(partition, now_s))
            self._current_s[partition] = now_s
        return silent_s

    def _records(self, partition: int, messages: Sequence[Message]) -> list[Record]:
        """Messages of a partition as records, up to the mark that says that the topic has moved."""
        if partition in self._lasts:
            return []  # A worker that did not know of the move has written them.
        batch = self._make(messages)
        if not self._has_marks or None not in map(_value_of, batch):
            return batch
        for place, message in enumerate(messages):
            if (name := _moved_to(message)) is not None:
                # Nobody may pass it: a reader that begins again must meet it again.
                self._moved_to, self._lasts[partition] = name, message.offset() or 0
                return self._make(messages[:place]) if place else []
        return batch

    def _read(self, timeout_s: float) -> ReadResult:
        """The messages that are there, or else the first to arrive. A read of many would wait for as many."""
        first = self._reader.read(1, timeout_s)
        more = self._reader.read(_READ_MAX, 0)
        return ReadResult(first.messages + more.messages, first.ends + more.ends)

    def _no_answer(self, subject: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"reading {self.topic}: no answer {subject} in {_ASK_TIMEOUT_S:g} s; `sowstream doctor` looks closer"
        )

    def _stalled(self, todo: Mapping[int, int]) -> str:
        partitions = ", ".join(str(partition) for partition in sorted(todo))
        return (
            f"reading {self.topic}: nothing came from partition {partitions} for {STALL_TIMEOUT_S:g} s, though there "
            "is more. A transaction that is open holds readers back. Try again in a minute: Kafka ends what a dead "
            "worker left open. What is open for longer, `sowstream transactions list` finds; never abort it unseen"
        )


def _moved_to(message: Message) -> str | None:
    """Return the topic that a message names as the one that has taken the place of its own; None for any other."""
    key = message.key()
    if message.value() is not None or key is None or not key.startswith(RESERVED):
        return None
    return moved_to(key, cast("Headers | None", message.headers()))


def refuse_moved(kafka: Mapping[str, str], admin: Admin, topic: str, partitions: int, group: str) -> None:
    """Refuse to read a topic that has moved, for a reader that may begin behind the marks.

    A topic that has moved keeps its deletes for ever, so any other one costs a question about its settings alone.

    Args:
        kafka: librdkafka properties.
        admin: administration of the same cluster.
        topic: the SOW topic.
        partitions: the number of its partitions.
        group: the reader's name for the brokers.

    Raises:
        TopicMoved: another topic has taken its place.
        BrokerUnavailable: no answer in time.
        Stop: it cannot be read.
    """
    tail: int | None = None
    try:
        if admin.delete_retention_ms(topic) < MOVED_RETENTION_MS:
            return
    except ConfigurationError as error:
        if kafka_errors.is_unknown(error):
            raise
        tail = _TAIL_RECORDS  # Without the right to ask: where nothing was written behind the marks, they are there.
    boundary = SnapshotBoundary(
        kafka, admin, topic=topic, partitions=range(partitions), group=group, make=_tombstones, follows=False
    )
    try:
        ends = boundary.ends
        begins = {} if tail is None else {partition: max(0, end - tail) for partition, end in ends.items()}
        for _ in boundary.between(begins, ends):
            pass
    finally:
        boundary.close()


def _tombstones(messages: Sequence[Message]) -> list[Record]:
    """The records without a value, for a reader that looks for marks alone."""
    return records([message for message in messages if message.value() is None])
