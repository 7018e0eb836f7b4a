"""The input of the fault suite: commands of every kind and outcome, each identified by its header `trace`."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from tests.endtoend.world import World

CLIENT = "faults"


class Command(NamedTuple):
    """One input record."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


def commands(seed: int, count: int, keys: int) -> Iterator[Command]:
    """Generate commands: mostly deltas, and also every other kind of record."""
    rng = random.Random(seed)
    sequence = 0
    repeatable: list[Command] = []
    for number in range(count):
        key, what = rng.randrange(keys), rng.random()
        trace = {"trace": f"{seed}-{number}"}
        text = b"%d" % key
        if what < 0.03:
            yield Command(text, None, trace)
        elif what < 0.04:
            yield Command(text, b"", trace | {"command": "sow_delete"})
        elif what < 0.14:
            body = {"id": key, "n": number, "a": {"x": rng.randrange(3), "y": {"z": number}}, "tags": [number]}
            yield Command(text, json.dumps(body).encode(), trace | {"command": "publish"})
        elif what < 0.155:
            yield Command(text, *_bad(rng, key, trace))
        elif what < 0.175:
            yield Command(None, json.dumps(_delta(rng, key, number)).encode(), trace)
        elif what < 0.20:
            sequence += 1
            headers = trace | {"client": CLIENT, "sequence": str(sequence)}
            repeatable.append(Command(text, json.dumps(_delta(rng, key, number)).encode(), headers))
            yield repeatable[-1]
        elif what < 0.215 and repeatable:
            yield rng.choice(repeatable[-20:])
        else:
            yield Command(text, json.dumps(_delta(rng, key, number)).encode(), trace)


def _delta(rng: random.Random, key: int, number: int) -> dict[str, Any]:
    nested = rng.choice([1, {}, {"x": rng.randrange(3)}, {"y": {"w": number}}, {"y": None}, [number]])
    change = rng.choice([{}, {"a": nested}, {"tags": [number, {"t": None}]}, {"note": rng.choice(["", None, "é"])}])
    return {"id": key, "n": number, **change}


def _bad(rng: random.Random, key: int, trace: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    good = b'{"id":%d}' % key
    return rng.choice(
        [
            (b"{not json", trace),
            (b"[1,2]", trace),
            (b'{"id":%d}' % (key + 1), trace),
            (good, trace | {"command": "upsert"}),
        ]
    )


class Load:
    """Publishes in the background while a scenario injects its faults: `with Load(world, commands(...), 2_000): ...`.

    Leaving the block waits until all commands are published; `stop` ends it early.
    """

    def __init__(self, world: World, records: Iterable[Command], records_per_s: float) -> None:
        self.published = 0
        self._world = world
        self._records = records
        self._records_per_s = records_per_s
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def is_over(self) -> bool:
        """Return whether all commands are published."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop publishing."""
        self._stop.set()

    def _run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # noqa: BLE001 - raised where the block is left.
            self._failure = error

    def _publish(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._world.bootstrap,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": 0,  # A broker may be away for long; publishing resumes afterwards.
                "reconnect.backoff.max.ms": 500,
            }
        )
        topic = f"{self._world.name}.publish"
        began_s = time.monotonic()
        for command in self._records:
            while True:
                try:
                    producer.produce(topic, command.value, command.key, headers=dict(command.headers))
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
            self.published += 1
            ahead_s = self.published / self._records_per_s - (time.monotonic() - began_s)
            if self._stop.wait(max(0.0, ahead_s)) if ahead_s > 0.01 else self._stop.is_set():
                break
        assert producer.flush(120) == 0, "the load cannot be published"


def publish(world: World, records: Iterable[Command]) -> None:
    """Publish all commands at once."""
    with Load(world, records, float("inf")):
        pass
