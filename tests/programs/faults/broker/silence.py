"""Measures for how long partitions are silent, as a reader of committed records sees it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_READERS = 2
_POLL_S = 0.05
_NOTED_S = 0.25
_SETTINGS = {
    "group.id": "silence",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 50,
    "reconnect.backoff.max.ms": 300,
    "socket.connection.setup.timeout.ms": 2000,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "topic.metadata.refresh.interval.ms": 2000,
    "log_level": 0,
}


class Gap(NamedTuple):
    """A time without records, on the monotonic clock."""

    begin_s: float
    end_s: float


class Silence:
    """Reads some topics from their ends on, while a block lasts, and notes when no record came.

    The first of two readers to see a record counts: a reader that is slow to find a new leader is not measured.
    """

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int) -> None:
        """Set the topics; the block reads them."""
        self._bootstrap = bootstrap
        self._places = [(topic, number) for topic in topics for number in range(partitions)]
        self._gaps: dict[tuple[str, int], list[Gap]] = {place: [] for place in self._places}
        self._first_s: dict[tuple[str, int], float] = {}
        self._last_s: dict[tuple[str, int], float] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"silence {number}", daemon=True) for number in range(_READERS)
        ]

    def longest_s(self, topic: str, since_s: float, *, after_s: float | None = None) -> dict[int, float]:
        """The longest silence of each partition that ended after `since_s` or goes on, in seconds.

        Args:
            topic: the topic, which must be among those that are read.
            since_s: on the monotonic clock.
            after_s: start of counting, such as the moment when a broker was back.
        """
        with self._lock:
            return {
                place[1]: max(
                    (gap.end_s - max(gap.begin_s, after_s or 0.0) for gap in self._all(place) if gap.end_s > since_s),
                    default=0.0,
                )
                for place in self._places
                if place[0] == topic
            }

    def silent(self, topic: str, for_s: float = 1.5) -> list[int]:
        """The partitions without a record for the given time."""
        due_s = time.monotonic() - for_s
        with self._lock:
            return [place[1] for place in self._places if place[0] == topic and self._last_s.get(place, 0.0) < due_s]

    def since(self, topic: str, moment_s: float) -> dict[int, float | None]:
        """The time from a moment until the silence of each partition ended; 0: it ended before; None: it continues."""
        with self._lock:
            return {place[1]: self._ended_s(place, moment_s) for place in self._places if place[0] == topic}

    def first(self, topic: str, moment_s: float) -> dict[int, float | None]:
        """The time from a moment until the first record of each partition; None: none yet."""
        with self._lock:
            first = {place[1]: self._first_s.get(place) for place in self._places if place[0] == topic}
        return {number: None if at_s is None else at_s - moment_s for number, at_s in first.items()}

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

    def _ended_s(self, place: tuple[str, int], moment_s: float) -> float | None:
        spanning = (end_s - moment_s for begin_s, end_s in self._gaps[place] if begin_s < moment_s < end_s)
        return next(spanning, 0.0 if self._last_s.get(place, 0.0) > moment_s else None)

    def _all(self, place: tuple[str, int]) -> list[Gap]:
        """The past gaps, and the current one."""
        last_s = self._last_s.get(place)
        return self._gaps[place] + ([] if last_s is None else [Gap(last_s, time.monotonic())])

    def _run(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, **_SETTINGS})
        try:
            consumer.assign([TopicPartition(topic, number, -1) for topic, number in self._places])
            while not self._over.is_set():
                messages = consumer.consume(1000, _POLL_S)
                now_s = time.monotonic()
                with self._lock:
                    for message in messages:
                        if message.error() is None:
                            self._came((message.topic(), message.partition()), message.offset(), now_s)
        finally:
            consumer.close()

    def _came(self, place: tuple[str, int], offset: int, now_s: float) -> None:
        if offset <= self._positions.get(place, -1):
            return
        self._positions[place] = offset
        last_s = self._last_s.get(place, now_s)
        if now_s - last_s > _NOTED_S:
            self._gaps[place].append(Gap(last_s, now_s))
        self._last_s[place] = now_s
        self._first_s.setdefault(place, now_s)
