"""Asks for the committed offsets of consumer groups, by consumers that never join them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.renewal import leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FutureOffsets: TypeAlias = Future[list[TopicPartition]]
"""The partitions with their committed offsets, or the `KafkaException` of the whole request."""

# Every consumer of ours reads committed records only, and then librdkafka waits for stable offsets, too.
_WITHOUT_WAITING: Final = {"isolation.level": "read_uncommitted"}


class CommittedOffsets:
    """Asks for the committed offsets of groups, by a consumer for each; connects with the first request.

    An admin client could ask too, but the answer of a broker that is no longer the group's coordinator makes librdkafka
    read a null pointer, and the process dies (its issue 5040; seen with 2.16 when two brokers of three were killed).
    """

    def __init__(self, kafka: Mapping[str, str], *, is_stable: bool) -> None:
        """Create it, without connecting.

        Args:
            kafka: librdkafka properties.
            is_stable: whether to wait for the end of a transaction that commits offsets of the group.
        """
        self._kafka = kafka
        self._is_stable = is_stable
        self._lock = threading.Lock()
        self._consumers: dict[tuple[str, bool], Consumer] = {}

    def ask(self, group: str, places: Iterable[tuple[str, int]], timeout_s: float) -> FutureOffsets:
        """Request the offsets of partitions, `(topic, number)`, on a thread of its own.

        If a transaction of the group stays undecided for one of them, the answer is `UNSTABLE_OFFSET_COMMIT` for all:
        librdkafka waits in silence until all are stable. A request for one partition alone gets its own answer.
        """
        answer: FutureOffsets = Future()
        asked = (group, [TopicPartition(*place) for place in places], timeout_s, answer)
        threading.Thread(target=self._answer, args=asked, name="committed offsets", daemon=True).start()
        return answer

    def renew(self) -> None:
        """Have the next requests sent on new connections; requests under way end on the present ones."""
        with self._lock:
            former, self._consumers = self._consumers, {}
        if former:
            leave(former, former.clear)

    def _answer(self, group: str, places: list[TopicPartition], timeout_s: float, answer: FutureOffsets) -> None:
        try:
            if self._is_stable:
                answer.set_result(self._stable(group, places, timeout_s / 2))
            else:
                answer.set_result(self._consumer(group, is_stable=False).committed(places, timeout_s))
        except Exception as error:  # noqa: BLE001 - the caller raises it.
            answer.set_exception(error)

    def _stable(self, group: str, places: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """The offsets after the end of every transaction; each of two requests has this time limit."""
        try:
            return self._consumer(group, is_stable=True).committed(places, timeout_s)
        except KafkaException as error:
            if not kafka_errors.is_unanswered(error):
                raise
        # Kafka is away, or librdkafka repeats the request because an offset is undecided: the answer without waiting
        # for transactions shows which.
        self._consumer(group, is_stable=False).committed(places, timeout_s)
        raise KafkaException(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))

    def _consumer(self, group: str, *, is_stable: bool) -> Consumer:
        with self._lock:
            if (group, is_stable) not in self._consumers:
                own = {} if is_stable else _WITHOUT_WAITING
                self._consumers[group, is_stable] = Consumer(properties.log_reader(self._kafka, group=group) | own)
            return self._consumers[group, is_stable]
