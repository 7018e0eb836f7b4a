"""Measures one worker, exactly once, beside the pass-through ceiling: same input, same broker, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import yaml

from processor.broker import EmbeddedBroker
from processor.config import load as load_settings
from processor.kafka.admin import Admin
from processor.kafka.log_reader import LogReader
from processor.runtime.pipeline import specs
from processor.topics import TopicSpec
from tests.benchmarks.load import load

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 4
TIMEOUT_S = 600.0


class Figure(NamedTuple):
    """One run of one program."""

    records_per_s: float
    cpu_s_per_million: float


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        ours, ceiling = [], []
        for number in range(1, arguments.rounds + 1):
            name = f"bench{uuid.uuid4().hex[:8]}"
            settings = write_settings(directory / name, name, bootstrap)
            say(f"round {number} of {arguments.rounds}: loading {arguments.records} records")
            admin = Admin({"bootstrap.servers": bootstrap})
            topics = specs(load_settings(settings)) + [
                TopicSpec(f"{name}.{role}", "delta", PARTITIONS, {}) for role in ("pass1", "pass2")
            ]
            admin.create(topics)
            load(bootstrap, f"{name}.publish", arguments.records, arguments.keys)
            ceiling.append(passthrough(bootstrap, name, arguments.records))
            ours.append(worker(bootstrap, name, settings, arguments.records))
            say(f"  pass-through {ceiling[-1].records_per_s:9,.0f}/s   worker {ours[-1].records_per_s:9,.0f}/s")
            admin.delete([topic.name for topic in topics])
    report(ours, ceiling)


@contextlib.contextmanager
def broker(given: str | None) -> Iterator[str]:
    """The broker to measure on."""
    if given is not None:
        yield given
        return
    with EmbeddedBroker() as embedded:
        yield embedded.bootstrap


def write_settings(directory: Path, name: str, bootstrap: str, **topic: Any) -> Path:
    """Settings of one worker that keeps its state in `directory`; everything not said in `topic` is as shipped."""
    directory.mkdir()
    tree = {
        "application_id": name,
        "kafka": {"bootstrap.servers": bootstrap},
        "state_dir": str(directory / "state"),
        "topics": {name: {"partitions": PARTITIONS, **topic}},
        "runtime": {"metrics_port": free_port()},
    }
    file = directory / "sowstream.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def free_port() -> int:
    """A loopback port that nobody uses now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def passthrough(bootstrap: str, name: str, count: int) -> Figure:
    """One run of the ceiling."""
    topics = [f"{name}.{role}" for role in ("publish", "pass1", "pass2")]
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.passthrough", bootstrap, *topics, str(count)],
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    said = json.loads(run.stdout)
    return Figure(count / said["seconds"], said["cpu_s"] / count * 1e6)


def worker(bootstrap: str, name: str, settings: Path, count: int) -> Figure:
    """One run of a worker, from its first record until the group has committed all."""
    config = load_settings(settings)
    log = settings.with_name("worker.log")
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "processor.cli.main", "worker", "-c", str(settings)], stdout=said, stderr=said
        )
    try:
        measured = psutil.Process(process.pid)
        wait_until(process, log, lambda: consumed(config.runtime.metrics_port) > 0, 0.005)
        started, cpu = time.monotonic(), cpu_s(measured)
        reader = LogReader({"bootstrap.servers": bootstrap}, group=f"{name}.{name}")
        wait_until(process, log, lambda: committed(reader, f"{name}.publish") >= count, 0.02)
        seconds, used = time.monotonic() - started, cpu_s(measured) - cpu
        reader.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    return Figure(count / seconds, used / count * 1e6)


def wait_until(process: subprocess.Popen[bytes], log: Path, reached, every_s: float) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the worker ended or stalled:\n{log.read_text()[-3000:]}")
        time.sleep(every_s)


def consumed(port: int | None) -> float:
    """What the worker's own metrics say it has taken."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as page:
            text = page.read().decode()
    except OSError:
        return 0.0
    lines = [line for line in text.splitlines() if line.startswith("sowstream_records_consumed_total{")]
    return sum(float(line.split()[-1]) for line in lines)


def committed(reader: LogReader, topic: str) -> int:
    """How many input records the group has committed."""
    total = 0
    for partition in range(PARTITIONS):
        with contextlib.suppress(TimeoutError):
            total += reader.committed(topic, partition, 2.0) or 0
    return total


def cpu_s(process: psutil.Process) -> float:
    """User and system seconds so far."""
    times = process.cpu_times()
    return times.user + times.system


def report(ours: list[Figure], ceiling: list[Figure]) -> None:
    """The medians, side by side."""
    print(f"{'':14}{'records/s':>12}{'CPU s/M':>10}   (medians of {len(ours)} rounds)")
    for name, figures in (("pass-through", ceiling), ("worker", ours)):
        rate = statistics.median(figure.records_per_s for figure in figures)
        cpu = statistics.median(figure.cpu_s_per_million for figure in figures)
        print(f"{name:14}{rate:>12,.0f}{cpu:>10.1f}")
    ratios = [one.records_per_s / other.records_per_s for one, other in zip(ours, ceiling, strict=True)]
    print(
        f"of ceiling    {statistics.median(ratios):>12.0%}   (rounds: {', '.join(f'{r:.0%}' for r in sorted(ratios))})"
    )


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
