"""How long a published record takes until a reader of committed records sees what became of it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from processor.kafka.producers.publisher import Publisher
from processor.kafka.readers.log_reader import LogReader, Position
from processor.tools.bench.programs import START_TIMEOUT_S, require_alive, running, worker_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.tools.bench.setup import Setup
    from processor.topics.family import Role

_KEYS: Final = 200
_WARM_UP: Final = 5
"""One record of so many comes before those that count."""
_BATCH_MAX: Final = 100
_WAIT_S: Final = 0.001


def delays_s(
    setup: Setup, count: int, rate: float, *, output: Role = "delta", tell: Callable[[int], None] = lambda _seen: None
) -> list[float]:
    """From the publisher's call to the reader's, of each record after the warm-up, seconds.

    Publisher and reader are one thread of this process, which looks at the clock for both.

    Args:
        setup: a worker's settings; the topics are there and empty.
        count: how many records count.
        rate: records a second.
        output: what is read.
        tell: told how many were seen.

    Raises:
        Stop: the worker ended or stalled; with the end of its log.
    """
    publisher = Publisher({**setup.kafka, "linger.ms": "0"})
    reader = LogReader({**setup.kafka, "fetch.wait.max.ms": "5"}, group=f"{setup.group}.reader")
    try:
        with running(worker_process(setup)) as process:
            reader.add(Position(setup.topic(output), partition, 0) for partition in range(setup.partitions))
            warm_up = count // _WARM_UP
            whole = count + warm_up
            delays: list[float] = []
            sent = seen = 0
            began_s = time.monotonic()
            limit_s = START_TIMEOUT_S + 3 * whole / rate
            while seen < whole:
                require_alive(process, began_s + limit_s)
                # The second record comes after the first was seen: then the worker works.
                due = 1 + (int((time.monotonic() - began_s) * rate) if seen else 0)
                while sent < min(due, whole):
                    _publish(publisher, setup.topic("publish"), sent)
                    sent += 1
                # Asleep until something comes: whoever looks all the time takes the processor from what is measured.
                for message in [*reader.read(1, _WAIT_S).messages, *reader.read(_BATCH_MAX, 0.0).messages]:
                    now_s = time.monotonic()
                    seen += 1
                    if seen == 1:
                        began_s = now_s
                    if seen > warm_up:
                        delays.append(now_s - json.loads(message.value() or b"")["at"])
                tell(seen)
            return delays
    finally:
        reader.close()


def _publish(publisher: Publisher, topic: str, number: int) -> None:
    """One record, with the time in it."""
    key = number % _KEYS
    publisher.send(topic, b"%d" % key, json.dumps({"id": key, "at": time.monotonic()}).encode())
