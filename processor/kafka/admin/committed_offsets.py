"""Asks for the committed offsets of consumer groups, by consumers that never join them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from processor.kafka import properties
from processor.kafka.renewal import leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FutureOffsets: TypeAlias = Future[list[TopicPartition]]
"""The partitions with their committed offsets, or the `KafkaException` of the whole request."""

_UNSTABLE: Final = {"isolation.level": "read_uncommitted"}


class CommittedOffsets:
    """Asks for the committed offsets of groups, each by a consumer of its own; connects with the first request.

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
        self._level = {} if is_stable else _UNSTABLE
        self._consumers: dict[str, _GroupConsumer] = {}

    def ask(self, group: str, places: Iterable[tuple[str, int]], timeout_s: float) -> FutureOffsets:
        """Request the offsets of partitions, `(topic, number)`; requests about one group are answered in turn."""
        if group not in self._consumers:
            self._consumers[group] = _GroupConsumer(properties.log_reader(self._kafka, group=group) | self._level)
        return self._consumers[group].ask([TopicPartition(*place) for place in places], timeout_s)

    def renew(self) -> None:
        """Have the next requests sent on new connections."""
        for consumer in list(self._consumers.values()):
            consumer.is_stale = True


class _GroupConsumer:
    """A consumer that is used by one thread at a time, and closed by none that does not use it."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.is_stale = False
        self._properties = dict(kafka)
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None

    def ask(self, places: list[TopicPartition], timeout_s: float) -> FutureOffsets:
        answer: FutureOffsets = Future()
        asked = (places, timeout_s, answer)
        threading.Thread(target=self._answer, args=asked, name="committed offsets", daemon=True).start()
        return answer

    def _answer(self, places: list[TopicPartition], timeout_s: float, answer: FutureOffsets) -> None:
        with self._lock:
            try:
                answer.set_result(self._connected().committed(places, timeout_s))
            except Exception as error:  # noqa: BLE001 - the caller raises it.
                answer.set_exception(error)

    def _connected(self) -> Consumer:
        if self.is_stale and self._consumer is not None:
            former, self._consumer = self._consumer, None
            leave(former, former.close)
        self.is_stale = False
        if self._consumer is None:
            self._consumer = Consumer(self._properties)
        return self._consumer
