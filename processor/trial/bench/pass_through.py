"""The ceiling: the best rate of reading and writing with confluent_kafka here, without merge, state or transaction.

`python -m processor.trial.bench.pass_through FILE`, whose JSON is `kafka` (librdkafka properties), `source`, two
`outputs` and the `count` of records; prints one JSON line with `seconds` and `cpu_s`. It loops over the bare client on
purpose: through `group_consumer` and a producer of ours it would also measure their cost, and be no ceiling.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer

from processor.kafka.tokens import with_callback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_READER = {"auto.offset.reset": "earliest", "enable.auto.commit": "false", "queued.min.messages": "200000"}
_WRITER = {
    "linger.ms": "25",
    "batch.size": "1000000",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "1000000",
}
_HEADERS = [("kind", b"update"), ("version", b"12345678")]
"""As many headers as a worker writes."""


def pass_through(kafka: Mapping[str, str], source: str, outputs: Sequence[str], count: int) -> tuple[float, float]:
    """Copy `count` records of one topic to others; returns seconds from the first read to the last delivery, and CPU.

    Errors are not handled: the caller has a time limit, and the ceiling has no data to lose.
    """
    properties = with_callback(kafka)
    consumer = Consumer({**_READER, **properties, "group.id": f"{outputs[0]}.group"})
    producer = Producer({**_WRITER, **properties})
    produce: Callable[..., None] = producer.produce
    consumer.subscribe([source])
    done, started, cpu = 0, 0.0, 0.0
    while done < count:
        batch = consumer.consume(10_000, 0.2)
        if not batch:
            continue
        if not started:
            started, cpu = time.monotonic(), time.process_time()
        for message in batch:
            key, value, partition = message.key(), message.value(), message.partition()
            # The fields that any processor reads.
            message.headers(), message.offset(), message.timestamp()
            for output in outputs:
                while True:
                    try:
                        produce(output, value, key, partition, None, None, 0, _HEADERS)
                    except BufferError:
                        producer.poll(0.05)
                    else:
                        break
        producer.poll(0)
        done += len(batch)
    producer.flush()
    spent = time.monotonic() - started, time.process_time() - cpu
    consumer.close()
    return spent


def main() -> None:
    """Run as described in the file."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    gc.disable()
    seconds, cpu_s = pass_through(order["kafka"], order["source"], order["outputs"], order["count"])
    sys.stdout.write(json.dumps({"seconds": seconds, "cpu_s": cpu_s}) + "\n")


if __name__ == "__main__":
    main()
