"""A steady load on some topics, which measures the latency of each record from its publisher to a reader of deltas."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from confluent_kafka import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_KEYS = 500
_POLL_S = 0.02


class Latency(NamedTuple):
    """The latencies of a topic's records in a period."""

    records: int
    p50_s: float
    p99_s: float
    """Infinite where a record never came."""

    def __str__(self) -> str:
        return f"p50 {self.p50_s * 1000:.0f} ms, p99 {self.p99_s * 1000:.0f} ms of {self.records}"


class SteadyLoad:
    """Publishes and reads on threads of its own, for the time of a `with` block."""

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int, records_per_s: float) -> None:
        """Set the topics, and the number of records a second for each."""
        self._bootstrap = bootstrap
        self._topics = list(topics)
        self._partitions = partitions
        self._pause_s = 1 / records_per_s
        self._sent: dict[str, list[float]] = {topic: [] for topic in topics}  # Their times; the place is the number.
        self._took: dict[str, dict[int, float]] = {topic: {} for topic in topics}
        self._over = threading.Event()
        self._reading = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=run.__name__, daemon=True) for run in (self._publish, self._read)
        ]

    def latencies(self, since_s: float, until_s: float) -> dict[str, Latency]:
        """Return the latencies of the records published in a period of the monotonic clock, by topic."""
        return {topic: self._latency(topic, since_s, until_s) for topic in self._topics}

    def has_all(self, until_s: float) -> bool:
        """Return whether every record published before a time has arrived."""
        return all(
            number in self._took[topic]
            for topic in self._topics
            for number, sent_s in enumerate(list(self._sent[topic]))
            if sent_s < until_s
        )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _latency(self, topic: str, since_s: float, until_s: float) -> Latency:
        took = sorted(
            self._took[topic].get(number, math.inf)
            for number, sent_s in enumerate(list(self._sent[topic]))
            if since_s <= sent_s < until_s
        )
        if not took:
            return Latency(0, math.inf, math.inf)
        return Latency(len(took), took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)])

    def _publish(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "partitioner": "murmur2_random", "linger.ms": 2})
        self._reading.wait(120)
        due_s = time.monotonic()
        for number in itertools.count():
            for topic in self._topics:
                key = str(number % _KEYS)
                self._sent[topic].append(time.monotonic())
                producer.produce(f"{topic}.publish", json.dumps({"id": key, "n": number}), key)
            producer.poll(0)
            due_s += self._pause_s
            if self._over.wait(max(0.0, due_s - time.monotonic())):
                break
        producer.flush(120)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "latency",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        places = [(f"{topic}.delta", number) for topic in self._topics for number in range(self._partitions)]
        consumer.assign([TopicPartition(*place, 0) for place in places])
        self._reading.set()
        try:
            while not self._over.is_set():
                messages = consumer.consume(1000, _POLL_S)
                now_s = time.monotonic()
                for message in messages:
                    if message.error() is None and message.value():
                        topic, number = message.topic().removesuffix(".delta"), json.loads(message.value())["n"]
                        self._took[topic].setdefault(number, now_s - self._sent[topic][number])
        finally:
            consumer.close()
