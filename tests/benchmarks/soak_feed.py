"""Publishes deltas at a steady rate until its standard input ends: BOOTSTRAP TOPIC KEYS SIZE RATE."""

from __future__ import annotations

import select
import sys
import time
from itertools import islice

from confluent_kafka import Producer

from tests.benchmarks.growth_feed import Shape, deltas

_EVERY_S = 0.02
_FOR_EVER = 10**12


def main() -> None:
    """Publish what is due, fifty times a second; what could not be sent in time is sent later, and none is left out."""
    bootstrap, topic, keys, size, rate = sys.argv[1:]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        }
    )
    records = deltas(Shape(int(keys), int(size)), _FOR_EVER, seed=13)
    began_s, sent = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        due = int((time.monotonic() - began_s) * float(rate))
        for key, value in islice(records, due - sent):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
        sent = due
        producer.poll(0)
    producer.flush(30)
    print(sent, flush=True)


if __name__ == "__main__":
    main()
