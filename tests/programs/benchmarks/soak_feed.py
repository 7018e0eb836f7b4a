"""Publishes deltas at a steady rate, in a process of its own: BOOTSTRAP TOPIC KEYS SIZE RATE, until its input ends."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.programs.benchmarks.growth_feed import Shape, deltas, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.programs.benchmarks.growth_run import Grown

KEPT = {"retention.bytes": str(1 << 30), "segment.bytes": str(64 << 20)}
"""Limits of each partition of input and deltas: half an hour of them would fill a small disk."""
_EVERY_S = 0.02
_FOR_EVER = 10**12


@contextlib.contextmanager
def feed(bootstrap: str, grown: Grown, rate: float) -> Iterator[None]:
    """Start the feed, which ends with the block or with the process that started it."""
    order = [sys.executable, "-m", "tests.programs.benchmarks.soak_feed", bootstrap, grown.source]
    order += [str(grown.shape.keys), str(grown.shape.size_bytes), str(rate)]
    process = subprocess.Popen(order, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"the feed ended with exit code {process.returncode}")
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=60)


def main() -> None:
    """Publish the due records, fifty times a second; records that could not be sent in time are sent later."""
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
        send(producer, topic, islice(records, due - sent))
        sent = due
        producer.poll(0)
    producer.flush(30)
    print(sent, flush=True)


if __name__ == "__main__":
    main()
