"""Runs the measured programs, the pass-through ceiling and one worker, as separate processes over the same input.

A worker's latency is the time from publishing a record until a reader of committed records sees its result.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from processor.errors import Stop
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.clients.publisher import Publisher
from processor.runtime.worker import os_process
from processor.trial.bench.result import Figure
from processor.trial.broker.guarded import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from processor.topics.family import Role
    from processor.trial.bench.setup import BenchSetup


START_TIMEOUT_S: Final = 120.0
"""Time for a program to begin, or to print anything."""
_SLOWEST_PER_S: Final = 2_000
"""A program slower than this beyond START_TIMEOUT_S has stalled."""


def run_ceiling(kafka: Mapping[str, str], directory: Path, source: str, outputs: tuple[str, str], count: int) -> Figure:
    """Run the ceiling once, from the first record read until the last one is delivered.

    Raises:
        Stop: it ended or stalled; with the end of its log.
    """
    order = directory / "ceiling.json"
    # A file readable by the owner only, as the properties may have a password, which `ps` would show.
    order.touch(mode=0o600)
    order.write_text(json.dumps({"kafka": dict(kafka), "source": source, "outputs": outputs, "count": count}))
    command = [sys.executable, "-m", "processor.trial.bench.pass_through", str(order)]
    # The working directory is the caller's, as the properties may name files there.
    with running(
        GuardedProcess("ceiling", command, directory, cwd=Path.cwd(), env=os_process.environment())
    ) as process:
        deadline_s = time.monotonic() + _limit_s(count)
        while process.is_running:
            if time.monotonic() > deadline_s:
                raise Stop(f"the ceiling has stalled; its log ends:\n{process.tail()}")
            time.sleep(0.02)
        try:
            measured = json.loads(process.tail().splitlines()[-1])
            return Figure(count / measured["seconds"], measured["cpu_s"] / count * 1e6)
        except (LookupError, TypeError, ValueError):
            raise _ended(process) from None


def run_worker(
    setup: BenchSetup, count: int, on_progress: Callable[[int], None] = lambda _done: None, *, first: int = 0
) -> Figure:
    """Run a worker once, from its first batch of records until its group has committed all.

    Args:
        setup: its settings; the input is complete.
        count: the number of input records that are measured.
        on_progress: called now and then with the number of committed records.
        first: the number of records before them, which fill its state and are not measured.

    Raises:
        Stop: it ended or stalled; with the end of its log.
    """
    reader = LogReader(setup.kafka, group=setup.group)
    taken = 0.0

    def done() -> int:
        return committed(reader, setup.topic("publish"), setup.partitions) - first

    def has_begun() -> bool:
        nonlocal taken
        taken = done() if first else consumed(setup.metrics_port)
        return taken > 0

    def is_done() -> bool:
        now = done()
        on_progress(now)
        return now >= count

    try:
        with running(worker_process(setup)) as process:
            wait_until(process, has_begun, every_s=0.005, count=first)
            # A worker's metrics count a batch when it is merged: the clock starts then, and those records are not
            # counted. A trial may be nearly over by then; it counts all records, as so few are no measurement anyway.
            counted = count - taken if taken < count / 2 else count
            try:
                measured = program_of(process)
                started_s, cpu = time.monotonic(), cpu_s(measured)
                wait_until(process, is_done, every_s=0.02, count=count)
                return Figure(counted / (time.monotonic() - started_s), (cpu_s(measured) - cpu) / counted * 1e6)
            except psutil.Error as error:
                raise _ended(process) from error
    finally:
        reader.close()


def worker_process(setup: BenchSetup, *options: str) -> GuardedProcess:
    """The worker, not started yet, in the caller's working directory; it ignores settings in the environment."""
    command = [sys.executable, "-m", "processor.cli.main", "worker", "-c", str(setup.file), *options]
    ours = dict.fromkeys(name for name in os.environ if name.startswith("SOWSTREAM_"))
    return GuardedProcess("worker", command, setup.directory, cwd=Path.cwd(), env={**ours, **os_process.environment()})


@contextlib.contextmanager
def running(process: GuardedProcess) -> Iterator[GuardedProcess]:
    """Start a process, and end it in good order after the block."""
    process.start()
    try:
        yield process
    finally:
        process.await_end()


def wait_until(process: GuardedProcess, reached: Callable[[], bool], *, every_s: float, count: int = 0) -> None:
    """Poll until a condition holds; `count` is the number of records to merge before that.

    Raises:
        Stop: the process ended or stalled; with the end of its log.
    """
    deadline_s = time.monotonic() + _limit_s(count)
    while not reached():
        require_alive(process, deadline_s)
        time.sleep(every_s)


def require_alive(process: GuardedProcess, deadline_s: float) -> None:
    """Check that a process runs and has not reached its deadline by the monotonic clock.

    Raises:
        Stop: it ended or stalled; with the end of its log.
    """
    if not process.is_running:
        raise _ended(process)
    if time.monotonic() > deadline_s:
        raise Stop(f"the {process.name} has stalled; its log ends:\n{process.tail()}")


def consumed(port: int | None) -> float:
    """The number of records taken, from a worker's metrics; 0 if they do not answer."""
    if port is None:
        return 0.0
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return 0.0
    lines = [line for line in text.splitlines() if line.startswith("sowstream_records_consumed_total{")]
    return sum(float(line.split()[-1]) for line in lines)


def committed(reader: LogReader, topic: str, partitions: int) -> int:
    """The number of input records that the reader's group has committed."""
    total = 0
    for partition in range(partitions):
        with contextlib.suppress(TimeoutError):
            total += reader.committed(topic, partition, 2.0) or 0
    return total


def cpu_s(process: psutil.Process) -> float:
    """User and system seconds of a process so far."""
    times = process.cpu_times()
    return times.user + times.system


def program_of(process: GuardedProcess) -> psutil.Process:
    """The process itself, not its guard."""
    children = psutil.Process(process.guard_pid).children()
    if len(children) != 1:
        raise _ended(process)
    return children[0]


def _ended(process: GuardedProcess) -> Stop:
    """The error for a process that ended too early, with the end of its log."""
    code = process.await_end()
    return Stop(
        f"the {process.name} ended with exit code {code} while it was measured; its log ends:\n{process.tail()}"
    )


def _limit_s(count: int) -> float:
    return START_TIMEOUT_S + count / _SLOWEST_PER_S


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
