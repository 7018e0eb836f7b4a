"""The input of the conflation benchmark: a SOW topic of prices, written as a delta-merge worker writes one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import Producer

from processor.kafka import properties
from processor.kafka.partitioner import partition_for
from tests.programs.benchmarks.throughput import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

TRANSACTION_RECORDS = 20_000


class Price:
    """The record of one key over time: each update changes two to four of its seven fields."""

    __slots__ = ("key", "partition", "record", "version")

    def __init__(self, number: int) -> None:
        self.key = b"%d" % number
        self.partition = partition_for(self.key, PARTITIONS)
        self.version = 0
        self.record: dict[str, Any] = {
            "id": number,
            "symbol": f"SYM{number}",
            "name": f"Company {number}",
            "bid": 100.0 + number % 900,
            "ask": 101.0 + number % 900,
            "size": 100,
            "ts": 0,
        }

    def moved(self, rng: random.Random, number: int) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Generate the next update: its value and headers."""
        self.version += 1
        record = self.record
        record["bid"] = round(record["bid"] + rng.randrange(-50, 51) / 100, 2)
        if number % 3:
            record["ask"] = round(record["bid"] + rng.randrange(1, 100) / 100, 2)
        if not number % 4:
            record["size"] = rng.randrange(1, 100) * 100
        record["ts"] = number
        headers = [("version", b"%d" % self.version)]
        if self.version == 1:
            headers.append(("kind", b"insert"))
        return orjson.dumps(record), headers


def updates(count: int, keys: int, seed: int = 7) -> Iterator[tuple[Price, bytes, list[tuple[str, bytes]]]]:
    """Seeded updates of random keys."""
    rng = random.Random(seed)
    prices: list[Price | None] = [None] * keys
    for number in range(count):
        chosen = int(rng.random() * keys)
        price = prices[chosen]
        if price is None:
            price = prices[chosen] = Price(chosen)
        value, headers = price.moved(rng, number)
        yield price, value, headers


def load(bootstrap: str, topic: str, count: int, keys: int, *, rate: float, began_ms: float) -> dict[bytes, bytes]:
    """Write updates in transactions; returns the last value of each key.

    Args:
        bootstrap: the broker.
        topic: the SOW topic.
        count: number of updates.
        keys: number of keys.
        rate: updates per second by their timestamps.
        began_ms: timestamp of the first update.
    """
    settings = properties.transactional(
        {"bootstrap.servers": bootstrap}, transactional_id=f"{topic}.load", transaction_timeout_s=60
    )
    producer = Producer(settings)
    producer.init_transactions(30)
    last: dict[bytes, bytes] = {}
    for number, (price, value, headers) in enumerate(updates(count, keys)):
        if number % TRANSACTION_RECORDS == 0:
            if number:
                producer.commit_transaction(30)
            producer.begin_transaction()
        stamp_ms = int(began_ms + number / rate * 1000)
        producer.produce(topic, value, price.key, price.partition, headers=headers, timestamp=stamp_ms)
        last[price.key] = value
    producer.commit_transaction(30)
    return last
