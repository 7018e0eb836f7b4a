"""The feed, in a process of its own: a SOW topic as a worker writes it, in transactions, some of them rolled back.

It writes every record once and prints `loaded`; after the input `go` it writes updates at a rate, and prints its
figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.programs.subscriptions.orders import Book

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.programs.subscriptions.orders import Sent

_TURN_S = 0.05
_LOAD_BATCH = 20_000
_LIE_EVERY = 20
_LIES = 200


class Feed:
    """Writes to one topic in transactions."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": topic,
                "partitioner": "murmur2_random",
                "linger.ms": 2,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,  # The end of a broker is no error here, and not logged.
            }
        )
        self._producer.init_transactions(60)

    def write(self, records: Iterable[Sent], *, commit: bool = True) -> None:
        """Write records in one transaction."""
        producer, topic = self._producer, self._topic
        producer.begin_transaction()
        now_ms = time.time() * 1000
        for key, value, headers in records:
            producer.produce(topic, value % now_ms if value is not None and headers else value, key, headers=[*headers])
        producer.flush(60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)


def main() -> None:
    """Load the topic, wait for the start, and send the updates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="updates a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    gc.disable()  # The process makes no reference cycles, and a pause of the collector would cause a burst.
    feed, book = Feed(arguments.bootstrap, arguments.topic), Book(arguments.seed, arguments.records)
    records = book.all()
    while batch := list(islice(records, _LOAD_BATCH)):
        feed.write(batch)
    print("loaded", flush=True)
    sys.stdin.readline()
    updates, uncommitted = book.updates(), book.uncommitted()
    began_s = time.monotonic()
    sent, turns, behind_s = 0, 0, 0.0
    while (elapsed_s := time.monotonic() - began_s) < arguments.seconds:
        due = int(elapsed_s * arguments.rate)
        behind_s = max(behind_s, (due - sent) / arguments.rate)
        feed.write(islice(updates, due - sent))
        sent, turns = due, turns + 1
        if turns % _LIE_EVERY == 0:
            feed.write(islice(uncommitted, _LIES), commit=False)
        time.sleep(max(0.0, _TURN_S - (time.monotonic() - began_s - elapsed_s)))
    print(json.dumps({"sent": sent, "behind_s": behind_s, "cpu_s": time.process_time()}), flush=True)


if __name__ == "__main__":
    main()
