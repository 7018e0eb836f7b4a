"""Notes the pauses of each partition: the times without a committed delta, as a subscriber sees them."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from served import PORTS, TOPIC, kafka, serve

PAUSE_S = 0.6
"""Shortest time between two deltas of a partition that counts: three commit intervals."""


class Observer:
    """A reader of committed deltas, from their present end."""

    def __init__(self) -> None:
        self._pauses: dict[int, list[tuple[float, float]]] = {}
        self._seen_s: dict[int, float] = {}
        self._is_told = threading.Event()

    def start(self, partitions: int) -> None:
        """Begin to read."""
        consumer = Consumer(
            kafka(group_id="observer", enable_auto_commit=False, isolation_level="read_committed",
                  auto_offset_reset="latest", fetch_wait_max_ms=50)
        )  # fmt: skip
        topic = f"{TOPIC}.delta"
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in range(partitions)]
        consumer.assign([TopicPartition(topic, number, end) for number, end in enumerate(ends)])
        threading.Thread(target=self._read, args=(consumer,), daemon=True).start()

    def _read(self, consumer: Consumer) -> None:
        while True:
            messages = consumer.consume(1000, 0.02)
            now_s = time.time()
            for partition in {message.partition() for message in messages if message.error() is None}:
                before_s = self._seen_s.get(partition, now_s)
                if now_s - before_s >= PAUSE_S:
                    self._pauses.setdefault(partition, []).append((before_s, now_s))
                self._seen_s[partition] = now_s

    def pauses(self, since_s: float) -> dict[str, Any]:
        """The pauses that end after a time, with those that last, as [begin, end] by partition; and the last deltas."""
        now_s = time.time()
        found = {
            partition: [pause for pause in self._pauses.get(partition, ()) if pause[1] > since_s]
            + ([(seen_s, now_s)] if now_s - seen_s >= PAUSE_S else [])
            for partition, seen_s in sorted(self._seen_s.items())
        }
        return {"pauses": found, "seen": self._seen_s, "now": now_s}


if __name__ == "__main__":
    observer = Observer()
    serve(
        PORTS["observer"],
        {
            "start": lambda query: observer.start(int(query["partitions"])),
            "pauses": lambda query: observer.pauses(float(query["since"])),
        },
    )
