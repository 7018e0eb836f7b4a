"""The feed, in a process of its own: records at a fixed rate, each with the time when it is sent.

```
python -m tests.programs.conflated.feed localhost:9092 orders.sow --rate 20000 --keys 5000 --seconds 300 --seed 7
```
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from itertools import islice

from confluent_kafka import Producer

from tests.programs.conflated.walk import Walk

_TURN_S = 0.01


def main() -> None:
    """Send the records, and print one line of JSON with the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--rate", type=float, required=True, help="records a second")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--commands", action="store_true", help="deltas and deletes, not whole records")
    arguments = parser.parse_args()
    gc.disable()  # The process makes no reference cycles, and a pause of the collector would cause a burst.
    walk = Walk(arguments.seed, arguments.keys)
    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 2,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    produce, topic = producer.produce, arguments.topic
    supply = walk.commands() if arguments.commands else walk.records()
    began_s = time.monotonic()
    sent, behind_s = 0, 0.0
    while (elapsed_s := time.monotonic() - began_s) < arguments.seconds:
        due = int(elapsed_s * arguments.rate)
        behind_s = max(behind_s, (due - sent) / arguments.rate)
        for key, value, headers in islice(supply, due - sent):
            while True:
                try:
                    produce(topic, value, key, headers=headers)
                    break
                except BufferError:  # The broker accepts nothing: the output has the largest delay.
                    producer.poll(0.1)
        sent = due
        producer.poll(0)
        time.sleep(_TURN_S)
    assert producer.flush(60) == 0, "the feed cannot be sent"
    figures = {"sent": sent, "seconds": elapsed_s, "behind_s": behind_s, "cpu_s": time.process_time()}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
