"""Measures how long a published record takes until SOW shows it, under each guarantee: same broker, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from processor.config import load as load_settings
from processor.kafka.admin import Admin
from processor.runtime.pipeline import specs
from tests.benchmarks.load import load
from tests.benchmarks.throughput import PARTITIONS, Figure, broker, say, worker, write_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

GUARANTEES = ("exactly_once", "at_least_once")


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000, help="at which latency is measured")
    parser.add_argument("--rate", type=float, default=500.0, help="records a second")
    parser.add_argument("--load", type=int, default=200_000, help="records for throughput; 0: do not measure it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    delays: dict[str, list[float]] = {guarantee: [] for guarantee in GUARANTEES}
    rates: dict[str, list[Figure]] = {guarantee: [] for guarantee in GUARANTEES}
    with broker(arguments.bootstrap) as bootstrap:
        for number in range(arguments.rounds * len(GUARANTEES)):
            guarantee = GUARANTEES[number % len(GUARANTEES)]
            with family(bootstrap, guarantee) as (name, settings):
                found = delays_s(bootstrap, name, settings, arguments.records, arguments.rate)
                delays[guarantee] += found
                say(f"{guarantee}: p50 {at(found, 0.5) * 1000:.1f} ms, p99 {at(found, 0.99) * 1000:.1f} ms")
            if arguments.load:
                with family(bootstrap, guarantee) as (name, settings):
                    load(bootstrap, f"{name}.publish", arguments.load, arguments.load // 5)
                    rates[guarantee].append(worker(bootstrap, name, settings, arguments.load))
                    say(f"{guarantee}: {rates[guarantee][-1].records_per_s:,.0f} records/s")
    print(f"{'':16}{'p50 ms':>8}{'p99 ms':>8}{'records/s':>12}{'CPU s/M':>10}")
    for guarantee in GUARANTEES:
        ordered = sorted(rates[guarantee])
        best = ordered[-1] if ordered else Figure(0, 0)
        p50, p99 = (at(delays[guarantee], part) * 1000 for part in (0.5, 0.99))
        print(f"{guarantee:16}{p50:>8.1f}{p99:>8.1f}{best.records_per_s:>12,.0f}{best.cpu_s_per_million:>10.1f}")


@contextlib.contextmanager
def family(bootstrap: str, guarantee: str) -> Iterator[tuple[str, Path]]:
    """Topics and settings of their own."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
    settings = write_settings(directory / name, name, bootstrap)
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"guarantee": guarantee}))
    topics = specs(load_settings(settings))
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create(topics)
    try:
        yield name, settings
    finally:
        admin.delete([topic.name for topic in topics])
        shutil.rmtree(directory, ignore_errors=True)


def delays_s(bootstrap: str, name: str, settings: Path, count: int, rate: float) -> list[float]:
    """From the publisher's call to the reader's, of each record after the warm-up."""
    with settings.with_name("worker.log").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "processor.cli.main", "worker", "-c", str(settings)], stdout=said, stderr=said
        )
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{name}.reader", "fetch.wait.max.ms": 5,
                       "isolation.level": "read_committed", "enable.auto.commit": False})  # fmt: skip
    reader.assign([TopicPartition(f"{name}.sow", partition, 0) for partition in range(PARTITIONS)])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "partitioner": "murmur2_random"})
    delays: list[float] = []
    warm_up = count // 5
    try:
        began_s = time.monotonic()
        sent = seen = 0
        while seen < count + warm_up:
            if process.poll() is not None or time.monotonic() - began_s > 300:
                raise SystemExit(
                    f"the worker ended or stalled:\n{settings.with_name('worker.log').read_text()[-3000:]}"
                )
            if sent == 0 or (seen > 0 and sent < count + warm_up and time.monotonic() >= began_s + sent / rate):
                producer.produce(f"{name}.publish", json.dumps({"id": sent % 200, "at": time.monotonic()}).encode(),
                                 b"%d" % (sent % 200))  # fmt: skip
                producer.poll(0)
                sent += 1
            message = reader.poll(0.0005)
            if message is None or message.error() is not None:
                continue
            seen += 1
            if seen == 1:
                began_s = time.monotonic()
            if seen > warm_up:
                delays.append(time.monotonic() - json.loads(message.value() or b"")["at"])
    finally:
        reader.close()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    return delays


def at(values: list[float], part: float) -> float:
    """The value that so many are below."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


if __name__ == "__main__":
    main()
