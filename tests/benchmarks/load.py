"""Makes the input: full records first, then deltas, the same ones for every program that is measured."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import orjson
from confluent_kafka import Producer

Write: TypeAlias = Callable[[int, dict[str, Any], bool], tuple[bytes, list[tuple[str, bytes]]]]
"""How a message is written: its number, its body and whether it is a delta, to its value and its headers."""


def load(bootstrap: str, topic: str, count: int, keys: int, *, seed: int = 7, write: Write | None = None) -> None:
    """Publish `count` records over `keys` keys, as JSON without headers unless told otherwise."""
    write = write or _json
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
    for number, (key, body, is_delta) in enumerate(messages(count, keys, seed=seed)):
        value, headers = write(number, body, is_delta)
        while True:
            try:
                producer.produce(topic, value, b"%d" % key, headers=headers or None)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def messages(count: int, keys: int, *, seed: int = 7) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Key, body and whether it is a delta: the first message of a key is a whole record."""
    rng = random.Random(seed)
    seen: set[int] = set()
    for number in range(count):
        key = rng.randrange(keys)
        is_delta = key in seen
        seen.add(key)
        yield key, _delta(rng, key, number) if is_delta else _full(rng, key, number), is_delta


def _json(number: int, body: dict[str, Any], is_delta: bool) -> tuple[bytes, list[tuple[str, bytes]]]:
    return orjson.dumps(body), []


def _full(rng: random.Random, key: int, number: int) -> dict[str, Any]:
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


def _delta(rng: random.Random, key: int, number: int) -> dict[str, Any]:
    if number % 4:
        return {"id": key, "price": rng.random() * 100, "ts": number}
    return {"id": key, "status": f"s{number % 7}", "customer": {"tier": number % 5}, "ts": number}
