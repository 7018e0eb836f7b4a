"""One worker at one size: its state is filled once, then each run merges deltas into it and is measured."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import time
import urllib.request
import uuid
from typing import TYPE_CHECKING, NamedTuple, Self

import psutil
from confluent_kafka import Consumer, TopicPartition

from processor.config import load as load_settings
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.trial.bench.programs import cpu_s, running, wait_until, worker_process
from processor.trial.bench.setup import write_setup
from processor.trial.broker.guarded import GuardedProcess
from tests.programs.benchmarks.growth_feed import Shape, deltas, fulls, gated, publish
from tests.programs.benchmarks.quota import held

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MB = 1_000_000
_RUNNING = re.compile(r'^sowstream_task_state\{.*state="running".*\} 1\.0$', re.MULTILINE)
_CONSUMED = re.compile(r"^sowstream_records_consumed_total\{.*\} (\S+)$", re.MULTILINE)


class Size(NamedTuple):
    """The sizes that can grow, with their values in the runs of other groups."""

    keys: int = 100_000
    size_bytes: int = 230
    partitions: int = 4
    processes: int = 1
    batch_records: int = 5_000
    cores: float | None = None
    """Share of a core for each process during the measurement; None: no limit."""


class Figure(NamedTuple):
    """The figures of one run."""

    records_per_s: float
    cpu_s_per_million: float
    """User and system seconds of the worker's processes, without the broker's."""
    resident_mb: float
    """Largest resident memory of the worker's processes together."""


class Grown:
    """The topics and a filled state of one size, for as long as the block lasts."""

    def __init__(self, bootstrap: str, directory: Path, size: Size, config: Mapping[str, str] | None = None) -> None:
        """Set the size; `config` has further settings of its topics, as Kafka spells them."""
        self._bootstrap, self._size, self._config = bootstrap, size, dict(config or {})
        self._name = f"bench{uuid.uuid4().hex[:8]}"
        self._directory = directory / self._name
        self._ports = _free_ports(size.processes)
        self._cleanup = contextlib.ExitStack()
        self._runs = 0
        self.shape = Shape(size.keys, size.size_bytes)
        self.source = f"{self._name}.publish"
        self.partitions = size.partitions

    def __enter__(self) -> Self:
        self._cleanup.callback(shutil.rmtree, self._directory, ignore_errors=True)
        kafka = {"bootstrap.servers": self._bootstrap}
        topic = {"partitions": self._size.partitions, "config": self._config}
        runtime = {"metrics_port": self._ports[0], "batch_records_max": self._size.batch_records}
        self._setup = write_setup(self._directory, self._name, kafka, topic=topic, runtime=runtime)
        self._admin = Admin(kafka)
        topics = specs(load_settings(self._setup.file))
        self._admin.create(topics)
        self._cleanup.callback(self._admin.delete, [topic.name for topic in topics])
        self._asker = Consumer(kafka | {"group.id": self._setup.group, "enable.auto.commit": False})
        self._cleanup.callback(self._asker.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def fill(self) -> None:
        """Merge a full record of each key by the worker that is measured later; this pass is not measured."""
        publish(self._bootstrap, self.source, fulls(self.shape))
        with self.worker() as process:
            wait_until(process, lambda: self._committed() >= self._size.keys, every_s=0.1, count=self._size.keys)

    def run(self, count: int) -> Figure:
        """Merge deltas, and measure the time from their visibility until all are committed."""
        self._runs += 1
        records = deltas(self.shape, count, seed=self._runs)
        with (
            gated(self._bootstrap, self.source, records) as gate,
            self.worker() as process,
            contextlib.ExitStack() as holding,
        ):
            wait_until(process, self.is_shared, every_s=0.05)
            end_sum = self._end()  # The transaction's own markers follow.
            working = family(process)
            if self._size.cores is not None:
                holding.enter_context(held([each.pid for each in working], self._size.cores))
            began_s, cpu, resident = time.monotonic(), sum(map(cpu_s, working)), 0
            gate.commit_transaction()

            def is_done() -> bool:
                nonlocal resident
                resident = max(resident, resident_bytes(working))
                return self._committed() >= end_sum

            wait_until(process, is_done, every_s=0.02, count=count)
            seconds, used = time.monotonic() - began_s, sum(map(cpu_s, working)) - cpu
        return Figure(count / seconds, used / count * 1e6, resident / MB)

    @contextlib.contextmanager
    def worker(self) -> Iterator[GuardedProcess]:
        """Run the worker, which closes its state in good order: the next run finds it on the disk."""
        process = worker_process(self._setup, "--processes", str(self._size.processes))
        with running(process):
            yield process

    def is_shared(self) -> bool:
        """Return whether all partitions run, and each process has its share of them."""
        owned = [len(_RUNNING.findall(page)) for page in self._pages()]
        share = self._size.partitions // self._size.processes
        return sum(owned) == self._size.partitions and min(owned) >= share

    def consumed(self) -> float:
        """The input records consumed, by the processes' own metrics."""
        return sum(float(value) for page in self._pages() for value in _CONSUMED.findall(page))

    def lag(self) -> int:
        """The number of input records not yet committed."""
        # Committed offsets are read first: records that arrive between the two requests count as lag.
        done = self._committed()
        return self._end() - done

    def _pages(self) -> list[str]:
        """The metrics of each process; empty for a process that does not serve them yet."""
        pages = []
        for port in self._ports:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    pages.append(page.read().decode())
            except OSError:
                pages.append("")
        return pages

    def _end(self) -> int:
        """The sum of the input's end offsets."""
        return sum(self._admin.end_offsets(self.source, range(self._size.partitions)).values())

    def _committed(self) -> int:
        """The sum of the group's offsets, by one request for all partitions."""
        asked = [TopicPartition(self.source, number) for number in range(self._size.partitions)]
        return sum(max(0, place.offset) for place in self._asker.committed(asked, 10))


def family(process: GuardedProcess) -> list[psutil.Process]:
    """The processes of a worker, without its guard."""
    return psutil.Process(process.guard_pid).children(recursive=True)


def resident_bytes(processes: list[psutil.Process]) -> int:
    """The resident memory of the processes, with shared libraries counted for each."""
    return sum(each.memory_info().rss for each in processes)


def _free_ports(count: int) -> list[int]:
    """Free loopback ports in sequence, as the processes of a worker use them."""
    while True:
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError, OverflowError):
            first = probes.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            for number in range(1, count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port + number))
            return list(range(port, port + count))
