"""One run: rubbish in the input topic, a worker with default settings, and a ledger of the outputs."""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml
from confluent_kafka import Consumer, Message, TopicPartition

from processor.config import Config, load
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.programs.benchmarks.throughput import free_port
from tests.programs.fuzz.ledger import Ledger
from tests.programs.fuzz.raw_feed import RawFeed
from tests.programs.fuzz.rubbish import RECORD_BYTES_MAX, commands

PARTITIONS = 4
TIMEOUT_S = 3600.0
_MESSAGE_BYTES_MAX = 20_000_000


@dataclass
class Outcome:
    """The result of a run."""

    inputs: int = 0
    """Number of input records, those that the worker sent again included."""
    fates: Counter[str] = field(default_factory=Counter)
    """The number of input records with each outcome."""
    wrong: list[str] = field(default_factory=list)
    """The discrepancies; empty if all is well."""
    memory_mb: list[float] = field(default_factory=list)
    """The worker's resident memory, sampled ten times a second."""
    aborted: int = 0
    """Number of transactions that were rolled back."""
    exit_code: int | None = None
    """Exit code of the worker after SIGTERM."""
    seconds: float = 0.0
    """Time from the worker's start until all input was committed."""

    def __str__(self) -> str:
        lines = [f"{count:>10,}  {fate}" for fate, count in self.fates.most_common()]
        lines += [
            f"{self.inputs:>10,}  input records, {self.fates['rekeyed']:,} of them sent again with a key",
            f"{self.seconds:>10.0f}  seconds, {self.aborted} transactions rolled back, exit code {self.exit_code}",
        ]
        size = len(self.memory_mb) // 4
        if size:
            medians = ", ".join(f"{statistics.median(self.memory_mb[part * size :][:size]):.0f}" for part in range(4))
            lines.append(f"{'':>10}  memory of the worker by quarters of the run, medians: {medians} MB")
        return "\n".join([*lines, *(f"WRONG       {line}" for line in self.wrong)])


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    records: int = 100_000
    """Input records."""


def run(plan: Plan, bootstrap: str, directory: Path, name: str, report: Callable[[str], None]) -> Outcome:
    """Run the fuzzer on topics of its own, which are deleted afterwards."""
    seed, records = plan
    config = _settings(bootstrap, directory, name)
    admin = Admin(config.kafka)
    admin.create(specs(config))
    try:
        report(f"publishing {records:,} records")
        feed = RawFeed(bootstrap, f"{name}.publish", PARTITIONS, seed)
        feed.send(commands(seed, records))
        outcome = Outcome()
        outcome.wrong += feed.errors[:20]
        counted = _work(config, directory, name, outcome, report)
        _account(bootstrap, name, outcome, counted, report)
        for verb, batches in (("refused", feed.refused), ("took", feed.taken)):
            outcome.fates.update({f"batches that the broker {verb}: {flaw}": count for flaw, count in batches.items()})
        return outcome
    finally:
        admin.delete([spec.name for spec in specs(config)])


def _settings(bootstrap: str, directory: Path, name: str) -> Config:
    tree = {
        "application_id": name,
        "kafka": {"bootstrap.servers": bootstrap},
        "state_dir": str(directory / "state"),
        "topics": {
            name: {
                "partitions": PARTITIONS,
                "max_record_bytes": RECORD_BYTES_MAX,
                "source_header": True,
                "dlq_max_ratio": 1,
            }
        },
        "runtime": {"metrics_port": free_port()},
    }
    file = directory / "sowstream.yaml"
    file.write_text(yaml.safe_dump(tree))
    return load(file)


def _work(
    config: Config, directory: Path, name: str, outcome: Outcome, report: Callable[[str], None]
) -> dict[str, int]:
    """Run a worker until the group has committed the end of the input; returns its counts by event."""
    log = directory / "worker.log"
    port = config.runtime.metrics_port
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "processor.cli.main", "worker", "-c", str(directory / "sowstream.yaml")],
            stdout=output,
            stderr=output,
        )
    watched, began_s, told_s = psutil.Process(process.pid), time.monotonic(), time.monotonic()
    try:
        while (left := _left(config, name)) > 0:
            if process.poll() is not None or time.monotonic() - began_s > TIMEOUT_S:
                outcome.wrong.append(f"the worker ended or stalled:\n{log.read_text(errors='replace')[-3000:]}")
                break
            outcome.memory_mb.append(watched.memory_info().rss / 1e6)
            if time.monotonic() - told_s > 10:
                told_s = time.monotonic()
                report(f"  {left:,} records to go, {outcome.memory_mb[-1]:.0f} MB")
            time.sleep(0.1)  # Between two polls; the observed count decides.
        outcome.seconds = time.monotonic() - began_s
        metrics = _metrics(port)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        outcome.exit_code = process.wait(timeout=60)
    if outcome.exit_code != 0:
        outcome.wrong.append(f"exit code {outcome.exit_code}")
    outcome.aborted = int(
        sum(value for line, value in metrics if line.startswith("sowstream_transactions_aborted_total"))
    )
    if outcome.aborted:
        outcome.wrong.append(f"{outcome.aborted} transactions were rolled back")
    events: Counter[str] = Counter()
    for line, value in metrics:
        if match := re.match(r'sowstream_events_total\{event="(\w+)"', line):
            events[match[1]] += int(value)
    return dict(events)


def _left(config: Config, name: str) -> int:
    """The number of input records that the group has still to commit."""
    topic = f"{name}.publish"
    reader = Consumer({**config.kafka, "group.id": f"{name}.{name}", "isolation.level": "read_committed"})
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    left = 0
    for place in reader.committed(places, timeout=30):
        _, end = reader.get_watermark_offsets(TopicPartition(topic, place.partition), timeout=30)
        # The worker's own transactions leave a marker behind the records it sent again.
        behind = end - max(place.offset, 0)
        left += behind if behind > 1 else 0
    reader.close()
    return left


def _metrics(port: int | None) -> list[tuple[str, float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return [(line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines if not line.startswith("#")]


def _account(
    bootstrap: str, name: str, outcome: Outcome, counted: dict[str, int], report: Callable[[str], None]
) -> None:
    ledger = Ledger()
    for role, take in (
        ("publish", ledger.take_input),
        ("delta", ledger.take_delta),
        ("dlq", ledger.take_dlq),
        ("ack", ledger.take_ack),
        ("sow", ledger.take_sow),
    ):
        report(f"reading {name}.{role}")
        for message in _records(bootstrap, f"{name}.{role}"):
            take(message)
    ledger.close(counted)
    outcome.inputs, outcome.fates = len(ledger.inputs), ledger.fates
    outcome.wrong += ledger.wrong[:20]


def _records(bootstrap: str, topic: str) -> Iterator[Message]:
    """Every committed record of a topic up to its end, by a plain consumer."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ledger",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _MESSAGE_BYTES_MAX,
        }
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ends: set[int] = set()
    while len(ends) < PARTITIONS:
        for message in reader.consume(5_000, 0.2):
            if message.error() is not None:
                ends.add(message.partition())
            else:
                yield message
    reader.close()
