"""Measures the time from publishing a record until a reader of committed records sees its result."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from processor.kafka.producers.publisher import Publisher
from processor.kafka.readers.log_reader import LogReader, Position
from processor.tools.bench.programs import START_TIMEOUT_S, require_alive, running, worker_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.tools.bench.setup import BenchSetup
    from processor.topics.family import Role

_KEYS: Final = 200
_WARM_UP: Final = 5
"""Divisor: this part of the records comes first, as a warm-up, and does not count."""
_BATCH_MAX: Final = 100
_WAIT_S: Final = 0.001


def delays_s(
    setup: BenchSetup,
    count: int,
    rate: float,
    *,
    output: Role = "delta",
    on_progress: Callable[[int], None] = lambda _seen: None,
) -> list[float]:
    """The latency of each record after the warm-up, from the publisher's call to the reader's, in seconds.

    Publisher and reader share one thread of this process, and therefore one clock.

    Args:
        setup: a worker's settings; its topics exist and are empty.
        count: the number of records after the warm-up.
        rate: records a second.
        output: the topic that is read.
        on_progress: called with the number of records seen.

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
                # The second record is sent after the first was seen, when the worker works.
                due = 1 + (int((time.monotonic() - began_s) * rate) if seen else 0)
                while sent < min(due, whole):
                    _publish(publisher, setup.topic("publish"), sent)
                    sent += 1
                # Sleep until a message arrives: polling would take processor time from the worker.
                for message in [*reader.read(1, _WAIT_S).messages, *reader.read(_BATCH_MAX, 0.0).messages]:
                    now_s = time.monotonic()
                    seen += 1
                    if seen == 1:
                        began_s = now_s
                    if seen > warm_up:
                        delays.append(now_s - json.loads(message.value() or b"")["at"])
                on_progress(seen)
            return delays
    finally:
        reader.close()


def _publish(publisher: Publisher, topic: str, number: int) -> None:
    """Publish one record that contains the time."""
    key = number % _KEYS
    publisher.send(topic, b"%d" % key, json.dumps({"id": key, "at": time.monotonic()}).encode())
