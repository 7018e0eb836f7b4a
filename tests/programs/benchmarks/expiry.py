"""Measures how late records expire: many live records, each due at its own time, as a reader of the topic sees them."""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from processor.config import load as load_settings
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from processor.runtime.worker import os_process
from tests.programs.benchmarks.throughput import (
    PARTITIONS,
    broker,
    committed,
    print_progress,
    wait_until,
    write_settings,
)

LOADING_S = 60
"""Least time to live per million records: all must be written before the first one expires."""


def main() -> None:
    """Load the records, wait, and print their delays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--spread", type=int, default=60, help="seconds over which they fall due")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        late_s = _measure(bootstrap, directory, arguments.records, arguments.spread)
    late_s.sort()
    percentiles = ", ".join(f"p{part:g} {late_s[int(len(late_s) * part / 100)]:.3f} s" for part in (1, 50, 99, 99.9))
    print(
        f"{len(late_s):,} records expired within {arguments.spread} s; late by: {percentiles}, most {late_s[-1]:.3f} s"
    )
    print(f"before their time: {sum(late < 0 for late in late_s)}")


def _measure(bootstrap: str, directory: Path, records: int, spread_s: int) -> list[float]:
    """The delay of each record's expiry, in seconds."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    settings = write_settings(directory / name, name, bootstrap)
    config = load_settings(settings)
    admin = Admin(config.kafka)
    admin.create(specs(config))
    least_s = 20 + LOADING_S * records // 1_000_000
    print_progress(f"loading {records:,} records that live {least_s} to {least_s + spread_s} s")
    _load(bootstrap, f"{name}.publish", records, least_s, spread_s)
    log = settings.with_name("worker.log")
    with log.open("wb") as log_file:
        order = [sys.executable, "-m", "processor.cli.main", "worker", "-c", str(settings)]
        process = subprocess.Popen(order, stdout=log_file, stderr=log_file, env=os_process.whole_environment())
    try:
        reader = LogReader({"bootstrap.servers": bootstrap}, group=f"{name}.{name}")
        wait_until(process, log, lambda: committed(reader, f"{name}.publish") >= records, 0.1)
        reader.close()
        due_ms = {}
        for message in _read(bootstrap, f"{name}.sow", live=False):
            assert message.value() is not None, "a record expired before all were there; load fewer"
            due_ms[message.key()] = int(dict(message.headers())["expires_at"])
            if len(due_ms) == records:
                break
        print_progress(f"all there, {(min(due_ms.values()) / 1000 - time.time()):.0f} s before the first is due")
        late_s = []
        for message in _read(bootstrap, f"{name}.delta", live=True):
            if dict(message.headers()).get("kind") == b"expire":
                late_s.append(time.time() - due_ms[message.key()] / 1000)
                if len(late_s) == records:
                    break
        return late_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        admin.delete([spec.name for spec in specs(config)])


def _load(bootstrap: str, topic: str, records: int, least_s: int, spread_s: int) -> None:
    rng = random.Random(7)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "partitioner": "murmur2_random"})
    for key in range(records):
        lives_s = b"%.3f" % (least_s + rng.random() * spread_s)
        while True:
            try:
                producer.produce(topic, b'{"id":%d,"qty":1}' % key, b"%d" % key, headers=[("expiration", lives_s)])
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


def _read(bootstrap: str, topic: str, *, live: bool) -> Iterator[Message]:
    """Committed records, from the beginning or the end on.

    The reading has no end: the end offset of a committed reader may be before a transaction that is already committed.
    """
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    if live:
        places = [
            TopicPartition(topic, place.partition, reader.get_watermark_offsets(place, timeout=30)[1])
            for place in places
        ]
    reader.assign(places)
    try:
        while True:
            yield from (message for message in reader.consume(1_000, 0.01) if message.error() is None)
    finally:
        reader.close()


if __name__ == "__main__":
    main()
