"""Input of any record size: full records that fill a state, and small deltas that become visible all at once."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAILS = 64
"""Number of different texts in the records: enough that compression rarely finds the same text again."""
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_TEXT_CHARS = 24
_ZIPF = 0.99
_PRIME = 2_654_435_761
_TRANSACTION_MS = 900_000
"""Time limit of the open transaction that waits for workers to start: the longest that a broker allows."""


class Shape(NamedTuple):
    """The shape of the records."""

    keys: int
    size_bytes: int
    """Size of a full record; a delta has 40 to 60 bytes, independent of its record."""


def fulls(shape: Shape, *, seed: int = 7) -> Iterator[tuple[bytes, bytes]]:
    """The key and full record of every key, once, in order."""
    rng = random.Random(seed)
    tails = [_tail(rng, shape.size_bytes) for _ in range(_TAILS)]
    for key in range(shape.keys):
        head = b'{"id":%d,"status":"new","price":%.6f,"ts":0' % (key, rng.random() * 100)
        yield b"%d" % key, head + tails[rng.randrange(_TAILS)]


def deltas(shape: Shape, count: int, *, seed: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and deltas of random keys; each delta changes a value."""
    rng = random.Random(seed)
    for number in range(1, count + 1):
        key = rng.randrange(shape.keys)
        yield b"%d" % key, b'{"id":%d,"price":%.6f,"ts":%d}' % (key, rng.random() * 100, number)


def mixed(
    shape: Shape, count: int, inserts: float, *, is_skewed: bool = False, seed: int = 11
) -> Iterator[tuple[bytes, bytes]]:
    """Deltas of keys that exist, and full records of new keys, which are this share of all.

    Args:
        shape: the keys that exist, and the size of a full record.
        count: the number of records.
        inserts: the share of new keys, 0 to 1.
        is_skewed: choose the keys of deltas by Zipf's law with exponent 0.99, as YCSB does, and not uniformly.
        seed: of everything.
    """
    rng = random.Random(seed)
    new = fulls(Shape(shape.keys + count, shape.size_bytes), seed=seed)
    new = itertools.islice(new, shape.keys, None) if inserts else new
    weights = list(itertools.accumulate(1 / rank**_ZIPF for rank in range(1, shape.keys + 1))) if is_skewed else []
    ranks = range(shape.keys)
    for number in range(1, count + 1):
        if rng.random() < inserts:
            yield next(new)
            continue
        key = rng.randrange(shape.keys)
        if is_skewed:
            # The popular keys are spread over all others, as they are where nobody sorts them.
            key = rng.choices(ranks, cum_weights=weights)[0] * _PRIME % shape.keys
        yield b"%d" % key, b'{"id":%d,"price":%.6f,"ts":%d}' % (key, rng.random() * 100, number)


def publish(bootstrap: str, topic: str, records: Iterator[tuple[bytes, bytes]]) -> None:
    """Publish records without a transaction."""
    producer = Producer(_settings(bootstrap))
    send(producer, topic, records)
    producer.flush()


@contextlib.contextmanager
def gated(bootstrap: str, topic: str, records: Iterator[tuple[bytes, bytes]]) -> Iterator[Producer]:
    """Publish in a transaction that the caller commits: before the commit a worker sees no record, and then all.

    A run can thus begin when all its processes are ready, without the time of the loading.
    """
    producer = Producer(
        _settings(bootstrap) | {"transactional.id": f"{topic}.load", "transaction.timeout.ms": _TRANSACTION_MS}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    send(producer, topic, records)
    producer.flush()
    yield producer


def send(producer: Producer, topic: str, records: Iterator[tuple[bytes, bytes]]) -> None:
    """Pass records to a producer, and wait while its queue is full."""
    for number, (key, value) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)


def _settings(bootstrap: str) -> dict[str, str | int]:
    return {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "batch.size": 1_000_000,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
        "partitioner": "murmur2_random",
    }


def _tail(rng: random.Random, size_bytes: int) -> bytes:
    """Fields of text that fill a record up to its size; a large record has many fields, as real ones have."""
    fields, left = b"", size_bytes - len(b'{"id":1234567,"status":"new","price":12.345678,"ts":0}')
    number = 0
    while left > 0:
        field = f',"field{number}":"{"".join(rng.choices(_LETTERS, k=_TEXT_CHARS))}"'.encode()
        fields, left, number = fields + field, left - len(field), number + 1
    return fields + b"}"
