"""The ceiling: no merge, no state. Prints one JSON line: records/s and CPU seconds."""

from __future__ import annotations

import gc
import json
import sys
import time

from confluent_kafka import Consumer, Producer


def main() -> None:
    """`passthrough BOOTSTRAP INPUT OUTPUT OUTPUT COUNT`."""
    bootstrap, source, *outputs, count_text = sys.argv[1:]
    gc.disable()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{outputs[0]}.group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.min.messages": 200_000,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    consumer.subscribe([source])
    headers = [("kind", b"update"), ("version", b"12345678")]
    done, count, started, cpu = 0, int(count_text), 0.0, 0.0
    while done < count:
        batch = consumer.consume(10_000, 0.2)
        if not batch:
            continue
        if not started:
            started, cpu = time.monotonic(), time.process_time()
        for message in batch:
            key, value, partition = message.key(), message.value(), message.partition()
            message.headers(), message.offset(), message.timestamp()
            for output in outputs:
                producer.produce(output, value, key, partition, headers=headers)
        producer.poll(0)
        done += len(batch)
    producer.flush()
    print(json.dumps({"seconds": time.monotonic() - started, "cpu_s": time.process_time() - cpu}))
    consumer.close()


if __name__ == "__main__":
    main()
