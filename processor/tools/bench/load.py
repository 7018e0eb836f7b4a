"""Generates the input: full records first, then deltas, the same for every measured program."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from processor.codec import load_codec
from processor.kafka.producers.publisher import Publisher
from processor.record import Headers

SEED: Final = 7
"""The seed of the input."""

Write: TypeAlias = Callable[[int, dict[str, Any], bool], tuple[bytes, Headers]]
"""Encodes a message: from its number, its body and whether it is a delta, to its value and headers."""

_TOLD_EACH: Final = 10_000


def load(
    kafka: Mapping[str, str],
    topic: str,
    count: int,
    keys: int,
    *,
    seed: int = SEED,
    write: Write | None = None,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Publish `count` records over `keys` keys, as JSON without headers by default.

    Args:
        kafka: librdkafka properties.
        topic: the Kafka topic.
        count: the number of records.
        keys: the maximum number of keys.
        seed: the seed of the records.
        write: encodes each record.
        on_progress: called now and then with the number of records sent.

    Raises:
        Stop: Kafka does not take them.
    """
    write = write or _json()
    # Large batches: the measured programs read them, and must not be limited by small ones.
    publisher = Publisher({"linger.ms": "20", **kafka})
    for number, (key, body, is_delta) in enumerate(messages(count, keys, seed=seed)):
        value, headers = write(number, body, is_delta)
        while not publisher.try_send(topic, b"%d" % key, value, headers or None):
            publisher.wait_for_room()
        if number % _TOLD_EACH == 0:
            publisher.serve()
            on_progress(number)
    publisher.flush()


def messages(count: int, keys: int, *, seed: int = SEED) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Key, body and whether it is a delta: the first message of a key is a full record."""
    rng = random.Random(seed)  # noqa: S311 - not used for secrets
    seen: set[int] = set()
    for number in range(count):
        key = rng.randrange(keys)
        is_delta = key in seen
        seen.add(key)
        yield key, _delta(rng, key, number) if is_delta else _full(rng, key, number), is_delta


def _json() -> Write:
    encode = load_codec("json").encode
    return lambda _number, body, _is_delta: (encode(body), [])


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
