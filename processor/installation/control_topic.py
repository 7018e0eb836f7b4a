"""The control topic for operators' commands: reads it to its end, writes orders, follows new records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.clients.log_reader import LogReader, Position, read_up_to
from processor.kafka.clients.publisher import Publisher
from processor.store.marks import FENCE_NAME
from processor.topics.family import control_spec
from processor.wire.control import ALL_PARTITIONS, Failure, Fence, Key, Notice, Order, decode, decode_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.kafka.admin.admin import Admin
    from processor.kafka.message import Message
    from processor.record import Outgoing

READ_TIMEOUT_S: Final = 10.0
"""Longest wait for an answer, and for the next record."""


def fence_mark(fence: Fence) -> Outgoing:
    """Return the record of a mark topic with a fence; where workers may merge, the mark is removed."""
    return FENCE_NAME, fence.encode() if fence.is_up else None, []


class ControlEntries(NamedTuple):
    """The workers' notices of one application."""

    held: Mapping[str, Mapping[int, Notice]]
    """The partitions that are held, by pipeline."""
    failed: Mapping[str, Mapping[str, Failure]]
    """The processes in which a pipeline has failed, by pipeline."""
    fences: Mapping[str, Fence]
    """The engine that merges each pipeline; a pipeline without a fence is merged by its workers."""
    end: int
    """The end of the control topic when it was read."""


class ControlTopic:
    """The control topic of one installation. One thread only."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, *, prefix: str = "") -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            admin: administration of the same cluster.
            prefix: the prefix of all topic names of the installation.
        """
        self.spec = control_spec(prefix)
        """The Kafka topic as it should be."""
        self._kafka = kafka
        self._admin = admin

    @property
    def topic(self) -> str:
        """The Kafka topic."""
        return self.spec.name

    def read(self, application_id: str, timeout_s: float = READ_TIMEOUT_S) -> ControlEntries | None:
        """Read the present notices of an application; None if there is no control topic.

        Raises:
            BrokerUnavailable: no answer in time.
            ConfigurationError: this user has no right to see it.
            Stop: Kafka refuses, or the topic cannot be read to its end in time.
        """
        is_listed = self.topic in self._admin.cluster(timeout_s).topics
        # The list of all topics lacks those that this user has no right to see; by name, Kafka says so.
        if not is_listed and self._admin.partitions_of(self.topic, timeout_s) is None:
            return None
        ends = self._admin.end_offsets(self.topic, [0], timeout_s)
        messages = read_up_to(self._reader(), self.topic, ends, stall_timeout_s=timeout_s)
        latest = {message.key(): message.value() for message in messages}
        return _entries(application_id, latest.items(), ends[0])

    def fence(self, entries: ControlEntries | None, pipeline: str, mark: str) -> Fence | None:
        """The fence of a pipeline; None: there is none.

        Where the control topic has none, as one that was deleted and created again, the marks of the pipeline have it.

        Args:
            entries: the entries of the control topic; None: there is no such topic.
            pipeline: the pipeline's name.
            mark: its mark topic.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: the mark topic cannot be read to its end.
        """
        if entries is not None and pipeline in entries.fences:
            return entries.fences[pipeline]
        partitions = self._admin.partitions_of(mark, READ_TIMEOUT_S)
        if partitions is None:
            return None
        ends = self._admin.end_offsets(mark, range(partitions), READ_TIMEOUT_S)
        marks: dict[int | None, bytes | None] = {}
        for message in read_up_to(self._reader(), mark, ends, stall_timeout_s=READ_TIMEOUT_S):
            if message.key() == FENCE_NAME:
                marks[message.partition()] = message.value()
        fences = [
            fence for value in marks.values() if value is not None and (fence := decode(Fence, value)) is not None
        ]
        return max(fences, key=lambda fence: fence.at_ms, default=None)

    def write_order(self, application_id: str, pipeline: str, order: Order) -> None:
        """Write an order.

        Raises:
            BrokerUnavailable: Kafka has not acknowledged it in time.
            Stop: Kafka refuses.
        """
        place = ALL_PARTITIONS if order.partition is None else str(order.partition)
        key = Key("resume", application_id, pipeline, place)
        publisher = Publisher(self._kafka)
        publisher.send(self.topic, key.encode(), order.encode(), partition=0)
        publisher.flush(READ_TIMEOUT_S)

    def follow(self, offset: int) -> Following:
        """Follow the topic from an offset on."""
        return Following(self._reader(), self.topic, offset)

    def _reader(self) -> LogReader:
        # The group is never joined; it has the topic's name, so that one ACL grants both.
        return LogReader(self._kafka, group=self.topic)


class Following:
    """A reader of new records of the control topic."""

    def __init__(self, reader: LogReader, topic: str, offset: int) -> None:
        """Start at an offset; the reader is closed by `close`."""
        self._reader = reader
        self._reader.add([Position(topic, 0, offset)])

    def next(self, timeout_s: float) -> list[Message]:
        """The next records within a time, perhaps none.

        Raises:
            Stop: it cannot be read on.
        """
        return self._reader.read(1, timeout_s).messages

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


def _entries(application_id: str, latest: Iterable[tuple[bytes | None, bytes | None]], end: int) -> ControlEntries:
    held: dict[str, dict[int, Notice]] = {}
    failed: dict[str, dict[str, Failure]] = {}
    fences: dict[str, Fence] = {}
    for data, value in latest:
        key = decode_key(data)
        if key is None or value is None or key.application_id != application_id:
            continue
        if key.kind == "held" and key.place.isdecimal() and (notice := decode(Notice, value)) is not None:
            held.setdefault(key.pipeline, {})[int(key.place)] = notice
        elif key.kind == "failed" and (failure := decode(Failure, value)) is not None:
            failed.setdefault(key.pipeline, {})[key.place] = failure
        elif key.kind == "fence" and (fence := decode(Fence, value)) is not None:
            fences[key.pipeline] = fence
    return ControlEntries(held, failed, fences, end)
