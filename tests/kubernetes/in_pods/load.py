"""Publishes: each key once, then deltas of random keys at a rate. Each delta changes its record."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

from confluent_kafka import Producer
from served import PORTS, TOPIC, kafka, serve

_TICK_S = 0.02


class Load:
    """A publisher."""

    def __init__(self) -> None:
        self._producer = Producer(
            kafka(linger_ms=5, partitioner="murmur2_random", enable_idempotence=True, message_timeout_ms=0)
        )
        self._random = random.Random(26)
        self._keys = 0
        self._number = 0
        self._rate = 0
        self.stored = 0
        self.failed = 0
        threading.Thread(target=self._run, daemon=True).start()

    def fill(self, keys: int) -> dict[str, Any]:
        """Publish a full record for each key."""
        for key in range(keys):
            self._publish(key, {"id": key, "n": 0, "customer": f"customer {key % 997}", "text": "x" * 60})
        self._producer.flush()
        self._keys = keys
        return self.counts()

    def set_rate(self, rate: int) -> dict[str, Any]:
        """Publish so many deltas a second; 0 waits until all are stored."""
        self._rate = rate
        if rate == 0:
            time.sleep(2 * _TICK_S)
            self._producer.flush()
        return self.counts()

    def counts(self) -> dict[str, Any]:
        """The number of records that Kafka has stored, and that it has refused."""
        return {"stored": self.stored, "failed": self.failed, "waiting": len(self._producer)}

    def _run(self) -> None:
        """Catch up with the rate at each tick; what the broker's absence has delayed is published later."""
        due_s = time.monotonic()
        while True:
            time.sleep(_TICK_S)
            self._producer.poll(0)
            rate = self._rate
            now_s = time.monotonic()
            if not rate or len(self._producer) > 50_000:
                due_s = now_s
                continue
            while due_s < now_s:
                due_s += 1 / rate
                self._number += 1
                key = self._random.randrange(self._keys)
                self._publish(key, {"id": key, "n": self._number, f"f{self._number % 4}": self._number})

    def _publish(self, key: int, record: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(
                    f"{TOPIC}.publish", json.dumps(record).encode(), str(key).encode(), on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                break
        if key % 1000 == 0:
            self._producer.poll(0)

    def _delivered(self, error: object, _: object) -> None:
        self.stored += error is None
        self.failed += error is not None


if __name__ == "__main__":
    load = Load()
    serve(
        PORTS["load"],
        {
            "fill": lambda query: load.fill(int(query["keys"])),
            "rate": lambda query: load.set_rate(int(query["rate"])),
            "counts": lambda _: load.counts(),
        },
    )
