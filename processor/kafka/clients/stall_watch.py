"""Finds input that librdkafka fetches again and again without an event: a batch that it cannot parse.

Brokers take a record whose key has a length of -2, and Java reads it as a null. librdkafka (2.16.1) takes the batch for
one that was cut off, waits half a second and fetches it again, for ever. It reports that in its debug log alone. So
where a position stands still although there is more, a second consumer reads there, and its debug log is read.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from processor.errors import PartitionHeld
from processor.kafka import properties

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

_LOOK_S: Final = 2.0
_STALL_S: Final = 10.0
"""Time without progress after which a position is looked at."""

_PROBE_S: Final = 15.0
_AGAIN_S: Final = 60.0
"""Time after which a position that still stands is looked at again, as after an outage of Kafka."""

_TRIES: Final = 2
_UNPARSED: Final = ("Local: Read underflow", "Local: Bad message format")


class StallWatch:
    """Watches the partitions that a consumer reads. One thread only."""

    def __init__(self, kafka: Mapping[str, str], *, group: str, topic: str) -> None:
        """Begin without partitions.

        Args:
            kafka: librdkafka properties.
            group: the name of the second consumer for the brokers; the group is never joined.
            topic: the topic.
        """
        self._kafka, self._group, self._topic = kafka, group, topic
        self._standing: dict[int, tuple[int, float]] = {}  # By partition: the position, and when to look at it.
        self._unparsed: dict[int, tuple[int, PartitionHeld]] = {}  # By partition: the offset that cannot be parsed.
        self._probe: _Probe | None = None
        self._look_s = 0.0

    def begin(self, partition: int, offset: int) -> PartitionHeld | None:
        """Watch a partition that is read from an offset on; returns the reason why it cannot be, if that is known."""
        self._standing[partition] = offset, time.monotonic() + _STALL_S
        unparsed_offset, reason = self._unparsed.get(partition, (-1, None))
        return reason if unparsed_offset == offset else None

    def end(self, partition: int) -> None:
        """Watch a partition no more."""
        self._standing.pop(partition, None)

    def look(self, consumer: Consumer, ended: Container[int]) -> Mapping[int, PartitionHeld]:
        """The partitions that cannot be read on, with the reason; cheap, to be called before each read.

        Args:
            consumer: the consumer that reads them.
            ended: the partitions without a further record for now.
        """
        now_s = time.monotonic()
        if now_s < self._look_s:
            return {}
        self._look_s = now_s + _LOOK_S
        try:
            places = consumer.position([TopicPartition(self._topic, number) for number in self._standing])
        except KafkaException:  # One of them is being taken away.
            return {}
        for place in places:
            before, due_s = self._standing[place.partition]
            position = max(before, place.offset)  # Negative before the first record.
            _, end = consumer.get_watermark_offsets(place, cached=True)
            if position != before or place.partition in ended or end <= position:
                self._standing[place.partition] = position, now_s + _STALL_S
            elif now_s >= due_s and self._probe is None:
                self._standing[place.partition] = position, now_s + _AGAIN_S
                self._probe = _Probe(self._kafka, self._group, TopicPartition(self._topic, place.partition, position))
        return self._found()

    def _found(self) -> Mapping[int, PartitionHeld]:
        """The result of the look that has ended, if it found that the position cannot be passed."""
        if self._probe is None or self._probe.is_alive():
            return {}
        place, why, self._probe = self._probe.place, self._probe.why, None
        if not why or self._standing.get(place.partition, (-1,))[0] != place.offset:
            return {}
        reason = PartitionHeld(
            "unreadable_batch",
            f"{self._topic} partition {place.partition}: the batch of records at offset {place.offset} cannot be "
            f"parsed ({why}); records behind it in the same batch cannot be read either",
        )
        self._unparsed[place.partition] = place.offset, reason
        return {place.partition: reason}


class _Probe(threading.Thread):
    """Reads at a position with a consumer of its own, until a record arrives or its debug log says why none does."""

    def __init__(self, kafka: Mapping[str, str], group: str, place: TopicPartition) -> None:
        super().__init__(name=f"stall {place.topic}/{place.partition}", daemon=True)
        self.place = place
        self.why = ""
        """The reason; empty if there is none, or if it is another one than the batch."""
        self._kafka, self._group = kafka, group
        self._lines: list[str] = []
        self.start()

    def run(self) -> None:
        """Read."""
        settings = properties.log_reader(self._kafka, group=self._group) | {"debug": "fetch", "logger": self}
        reader = Consumer(settings)
        try:
            reader.assign([self.place])
            deadline_s = time.monotonic() + _PROBE_S
            while len(self._lines) < _TRIES and time.monotonic() < deadline_s:
                if reader.consume(1, 0.2):  # A record, the end or an error: each is reported to every consumer.
                    return
            if len(self._lines) >= _TRIES:
                self.why = self._lines[-1]
        except KafkaException as error:
            properties.log.warning("looking at %s: %s", self.name, error)
        finally:
            reader.close()

    def log(self, level: int, text: str, *arguments: Any) -> None:  # noqa: ARG002
        """Look at a line of the debug log, as `logging.Logger.log` gets it; the last argument is the message."""
        line = str(arguments[-1]) if arguments else text
        if "Fetch backoff" in line:
            self._lines += [why for why in _UNPARSED if line.endswith(why)]
