"""Measures one worker, exactly once, beside the pass-through ceiling and its rivals: same input and broker, in turn."""

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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import psutil
import yaml

from processor.broker import EmbeddedBroker
from processor.config import load as load_settings
from processor.kafka.admin import Admin
from processor.kafka.log_reader import LogReader
from processor.topics import TopicSpec, family_specs
from tests.benchmarks.load import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS = 4
TIMEOUT_S = 600.0
_SLOWEST_PER_S = 2_000
"""A worker that is slower than this beyond TIMEOUT_S has stalled."""


class Figure(NamedTuple):
    """One run of one program."""

    records_per_s: float
    cpu_s_per_million: float


Run: TypeAlias = "Callable[[str, str, int], Figure]"
"""One run of a program: the broker, the family whose `.publish` has the input, and how many records it has."""


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rivals", action="store_true", help="beside Kafka Streams and Quix Streams, too")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        programs = contestants(directory, rivals=arguments.rivals)
        figures: dict[str, list[Figure]] = {program: [] for program in programs}
        for number in range(1, arguments.rounds + 1):
            say(f"round {number} of {arguments.rounds}: loading {arguments.records:,} records")
            with topic(bootstrap, arguments.records, arguments.keys) as name:
                for program, run in programs.items():
                    figures[program].append(run(bootstrap, name, arguments.records))
                    say(f"  {program:14} {figures[program][-1].records_per_s:9,.0f}/s")
        report(figures)
        if arguments.json:
            rounds = {program: [figure._asdict() for figure in of_program] for program, of_program in figures.items()}
            arguments.json.write_text(json.dumps(rounds, indent=1) + "\n")


def contestants(directory: Path, *, rivals: bool) -> dict[str, Run]:
    """What takes part, by name: ours is `sowstream`."""
    programs: dict[str, Run | None] = {
        "pass-through": passthrough,
        "sowstream": lambda bootstrap, name, count: worker(
            bootstrap, name, write_settings(directory / name, name, bootstrap), count
        ),
    }
    if rivals:
        # They import this module.
        from tests.benchmarks.peers import kafka_streams, quix_streams

        programs |= {"Kafka Streams": kafka_streams(directory), "Quix Streams": quix_streams(directory)}
    return {program: run for program, run in programs.items() if run is not None}


@contextlib.contextmanager
def topic(bootstrap: str, records: int, keys: int) -> Iterator[str]:
    """A loaded input topic, and outputs that nothing has been written to: the name of their family."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    admin = Admin({"bootstrap.servers": bootstrap})
    topics = family_specs(name, ("publish", "sow", "delta", "ack", "mark", "dlq"), partitions=PARTITIONS)
    topics += [TopicSpec(f"{name}.{role}", "delta", PARTITIONS, {}) for role in ("pass1", "pass2")]
    admin.create(topics)
    try:
        load(bootstrap, f"{name}.publish", records, keys)
        yield name
    finally:
        admin.delete([spec.name for spec in topics])


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
        wait_until(process, log, lambda: committed(reader, f"{name}.publish") >= count, 0.02, count)
        seconds, used = time.monotonic() - started, cpu_s(measured) - cpu
        reader.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    return Figure(count / seconds, used / count * 1e6)


def wait_until(process: subprocess.Popen[bytes], log: Path, reached, every_s: float, count: int = 0) -> None:
    """Look until it is so; `count` records may have to be merged before."""
    deadline = time.monotonic() + TIMEOUT_S + count / _SLOWEST_PER_S
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


def report(figures: dict[str, list[Figure]]) -> None:
    """The medians, side by side, and ours as so many times each other's: the median of the rounds' ratios."""
    ours = figures["sowstream"]
    print(f"{'':14}{'records/s':>12}{'CPU s/M':>10}{'sowstream is':>16}   (medians of {len(ours)} rounds)")
    for program, of_program in figures.items():
        rate = statistics.median(figure.records_per_s for figure in of_program)
        cpu = statistics.median(figure.cpu_s_per_million for figure in of_program)
        pairs = zip(ours, of_program, strict=True)
        ratios = sorted(one.records_per_s / other.records_per_s for one, other in pairs)
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        said = "" if program == "sowstream" else f"{statistics.median(ratios):>14.2f} x   (rounds: {rounds})"
        print(f"{program:14}{rate:>12,.0f}{cpu:>10.1f}{said}")


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
