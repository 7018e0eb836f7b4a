"""Makes the input: full records first, then deltas, the same ones for every program that is measured."""

from __future__ import annotations

import random

import orjson
from confluent_kafka import Producer


def load(bootstrap: str, topic: str, count: int, keys: int, *, seed: int = 7) -> None:
    """Publish `count` records over `keys` keys."""
    rng = random.Random(seed)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 2_000_000,
            "partitioner": "murmur2_random",
        }
    )
    seen: set[int] = set()
    for number in range(count):
        key = rng.randrange(keys)
        value = orjson.dumps(_delta(rng, key, number) if key in seen else _full(rng, key, number))
        seen.add(key)
        while True:
            try:
                producer.produce(topic, value, b"%d" % key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def _full(rng: random.Random, key: int, number: int) -> dict[str, object]:
    return {
        "id": key,
        "status": "new",
        "symbol": f"SYM{key % 500}",
        "qty": rng.randrange(1000),
        "price": rng.random() * 100,
        "notes": "x" * 40,
        "customer": {"name": f"c{key}", "tier": key % 5, "address": {"zip": key % 99_999}},
        "tags": ["a", "b", "c"],
        "ts": number,
    }


def _delta(rng: random.Random, key: int, number: int) -> dict[str, object]:
    if number % 4:
        return {"id": key, "price": rng.random() * 100, "ts": number}
    return {"id": key, "status": f"s{number % 7}", "customer": {"tier": number % 5}, "ts": number}
