"""Measures one conflate worker, exactly once, against Kafka Streams' `suppress`: same input and broker, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
from confluent_kafka import Consumer, TopicPartition

from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from tests.endtoend.oracle import Seen, last_per_key, replay
from tests.programs.benchmarks.conflation_feed import load
from tests.programs.benchmarks.conflation_pending import Quiet, pending_bytes, quiet
from tests.programs.benchmarks.conflation_programs import PEER, sowstream, suppress, underlying
from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.peers import compiled
from tests.programs.benchmarks.throughput import (
    PARTITIONS,
    TIMEOUT_S,
    broker,
    committed,
    consumed,
    cpu_s,
    print_progress,
    wait_until,
)

if TYPE_CHECKING:
    from tests.programs.benchmarks.conflation_programs import Underlying

STAMPED_PER_S = 150_000
"""Rate of the updates by their timestamps, which are the time for Kafka Streams."""


AHEAD_S = 1800
"""Time by which the timestamps are ahead of the clock."""
BEHIND_S = 600
"""Time by which they are behind it with `--behind`."""


class Figure(NamedTuple):
    """One run of one program."""

    records_per_s: float
    """Rate of updates, from the first one processed to the last."""
    cpu_s_per_million: float
    """User and system seconds of the process during the run, per million updates."""
    deliveries: int
    """Number of records on its SOW topic at the end."""
    missing: int
    """Number of keys whose last update is not among them."""


def main() -> None:
    """Load the input once, run the rounds, then measure a quiet key, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--behind", action="store_true", help="updates that are ten minutes old")
    parser.add_argument("--alone", action="store_true", help="without Kafka Streams")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--pending", type=int, help="measure only what so many waiting keys take in memory")
    arguments = parser.parse_args()
    if arguments.pending:
        print_pending_memory(arguments.pending)
        return
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        streams = None if arguments.alone else compiled(directory, PEER)
        family = cleanup.enter_context(underlying(bootstrap, directory, arguments.interval))
        print_progress(f"loading {arguments.records:,} updates of {arguments.keys:,} keys")
        began_ms = (time.time() + (-BEHIND_S if arguments.behind else AHEAD_S)) * 1000
        last = load(
            bootstrap, f"{family.name}.sow", arguments.records, arguments.keys, rate=STAMPED_PER_S, began_ms=began_ms
        )
        ours: list[Figure] = []
        theirs: list[Figure] = []
        for number in range(1, arguments.rounds + 1):
            ours.append(worker(family, arguments.records, last))
            print_progress(f"round {number}: {ours[-1]}")
            if streams is not None:
                theirs.append(streamed(streams, family, arguments.records, last))
                print_progress(f"         Kafka Streams {theirs[-1]}")
        report(arguments.records, ours, theirs)
        sample = quiet(bootstrap, directory, arguments.interval, streams)
        print_quiet_key(sample)
    figures = {"sowstream": [one._asdict() for one in ours], "Kafka Streams": [one._asdict() for one in theirs]}
    write(arguments.json, figures | {"quiet key": [sample._asdict()]})


def worker(family: Underlying, count: int, last: dict[bytes, bytes]) -> Figure:
    """Run our worker until it has delivered and committed all updates; its outputs must be complete."""
    source = f"{family.name}.sow"
    ends = Admin({"bootstrap.servers": family.bootstrap}).end_offsets(source, range(PARTITIONS))
    end_sum = sum(ends.values()) - PARTITIONS  # A transaction marker follows the last record of each partition.
    with sowstream(family) as running:
        measured = psutil.Process(running.process.pid)
        wait_until(running.process, running.log, lambda: consumed(running.metrics_port) > 0, 0.005)
        began_s, cpu = time.monotonic(), cpu_s(measured)
        wait_until(running.process, running.log, lambda: consumed(running.metrics_port) >= count, 0.05)
        seconds, used = time.monotonic() - began_s, cpu_s(measured) - cpu
        reader = LogReader({"bootstrap.servers": family.bootstrap}, group=f"{running.output}.{running.output}")
        wait_until(running.process, running.log, lambda: committed(reader, source) >= end_sum, 0.05)
        reader.close()
        sow_records = everything(family.bootstrap, f"{running.output}.sow")
        if replay(everything(family.bootstrap, f"{running.output}.delta")) != last_per_key(sow_records):
            raise SystemExit("the conflated delta topic does not add up to the conflated SOW topic")
        return Figure(count / seconds, used / count * 1e6, len(sow_records), missing(last, sow_records))


def streamed(class_path: str, family: Underlying, count: int, last: dict[bytes, bytes]) -> Figure:
    """Run Kafka Streams until it has processed all updates, and for an interval and a second more."""
    with suppress(class_path, family, count) as running:
        assert running.process.stdout is not None
        if not (line := running.process.stdout.readline()):
            raise SystemExit(f"Kafka Streams ended:\n{running.log.read_text()[-3000:]}")
        result = json.loads(line)
        time.sleep(family.interval_s + 1)
        sow_records = everything(family.bootstrap, f"{running.output}.sow")
        return Figure(
            count / result["seconds"], result["cpu_s"] / count * 1e6, len(sow_records), missing(last, sow_records)
        )


def missing(last: dict[bytes, bytes], sow_records: list[Seen]) -> int:
    """The number of keys whose last update is missing."""
    sow = {record.key: record.value for record in sow_records}
    return sum(sow.get(key) != value for key, value in last.items())


def everything(bootstrap: str, topic: str) -> list[Seen]:
    """Every committed record of a topic."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False,
                       "isolation.level": "read_committed", "enable.partition.eof": True})  # fmt: skip
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen, ended, deadline = [], set[int | None](), time.monotonic() + TIMEOUT_S
    while len(ended) < PARTITIONS:
        if time.monotonic() > deadline:
            raise SystemExit(f"{topic} does not come to an end")
        for message in reader.consume(10_000, 0.1):
            partition = message.partition()
            if message.error() is not None:
                ended.add(partition)
                continue
            headers = {name: (value or b"").decode() for name, value in message.headers() or ()}
            seen.append(Seen(partition or 0, message.offset() or 0, message.key(), message.value(), headers))
    reader.close()
    return seen


def report(records: int, ours: list[Figure], theirs: list[Figure]) -> None:
    """Print the medians, side by side."""
    print(
        f"{'':14}{'updates/s':>12}{'CPU s/M':>10}{'deliveries':>12}{'ratio':>8}{'missing':>10}"
        f"   (medians of {len(ours)} rounds)"
    )
    for name, figures in (("sowstream", ours), ("Kafka Streams", theirs)):
        if figures:
            rate, cpu, deliveries, left = (statistics.median(column) for column in zip(*figures, strict=True))
            print(f"{name:14}{rate:>12,.0f}{cpu:>10.2f}{deliveries:>12,.0f}{records / deliveries:>8.1f}{left:>10,.0f}")
    if theirs:
        ratios = sorted(one.records_per_s / than.records_per_s for one, than in zip(ours, theirs, strict=True))
        print(f"times theirs  {statistics.median(ratios):>12.2f}   (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")


def print_pending_memory(keys: int) -> None:
    """Print the memory of a pending key."""
    sample = pending_bytes(keys)
    print(f"{keys:,} keys wait, each with one update of {sample.value_bytes:.0f} bytes; each of them takes")
    print(f"  {sample.resident_bytes:,.0f} bytes of resident memory, {sample.traced_bytes:,.0f} by Python's count")
    print(f"  {sample.counted_bytes:,.0f} bytes of max_pending_bytes")


def print_quiet_key(sample: Quiet) -> None:
    """Print the delays of the quiet key."""
    print(f"a quiet key's last update: delivered by sowstream after {sample.ours_s:.2f} s")
    if sample.theirs_s is not None:
        print(
            f"  by Kafka Streams not within {sample.waited_s:.1f} s; "
            f"{sample.theirs_s:.2f} s after another key's next one"
        )


if __name__ == "__main__":
    main()
