"""Measures one worker, exactly once, against the pass-through ceiling and its rivals: same input, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from processor.config import load as load_settings
from processor.trial.bench import programs, setup
from processor.trial.bench.programs import consumed, cpu_s
from processor.trial.bench.result import Figure, ratios
from processor.trial.bench.setup import PARTITIONS, BenchSetup, write_setup
from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.server import free_port
from tests.programs.benchmarks.figures import load
from tests.programs.harness import print_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.kafka.clients.log_reader import LogReader

__all__ = ["PARTITIONS", "TIMEOUT_S", "Figure", "Run", "broker", "committed", "consumed", "cpu_s", "free_port"]
__all__ += ["load", "passthrough", "print_progress", "topic", "wait_until", "worker", "write_settings"]

TIMEOUT_S = 600.0

Run: TypeAlias = "Callable[[str, str, int], Figure]"
"""A run of a program on a broker and the family whose `.publish` has the input, with the number of its records."""


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
        competitors = contestants(directory, rivals=arguments.rivals)
        figures: dict[str, list[Figure]] = {program: [] for program in competitors}
        for number in range(1, arguments.rounds + 1):
            print_progress(f"round {number} of {arguments.rounds}: loading {arguments.records:,} records")
            with topic(bootstrap, arguments.records, arguments.keys) as name:
                for program, run in competitors.items():
                    figures[program].append(run(bootstrap, name, arguments.records))
                    print_progress(f"  {program:14} {figures[program][-1].records_per_s:9,.0f}/s")
        report(figures)
        if arguments.json:
            rounds = {program: [figure._asdict() for figure in of_program] for program, of_program in figures.items()}
            arguments.json.write_text(json.dumps(rounds, indent=1) + "\n")


def contestants(directory: Path, *, rivals: bool) -> dict[str, Run]:
    """The programs by name; ours is `sowstream`."""
    programs_by_name: dict[str, Run | None] = {
        "pass-through": passthrough,
        "sowstream": lambda bootstrap, name, count: worker(
            bootstrap, name, write_settings(directory / name, name, bootstrap), count
        ),
    }
    if rivals:
        # These modules import this module.
        from tests.programs.benchmarks.peers import kafka_streams, quix_streams

        programs_by_name |= {"Kafka Streams": kafka_streams(directory), "Quix Streams": quix_streams(directory)}
    return {program: run for program, run in programs_by_name.items() if run is not None}


@contextlib.contextmanager
def topic(bootstrap: str, records: int, keys: int) -> Iterator[str]:
    """Create a loaded input topic and empty outputs; yields the name of their family."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    with setup.topics({"bootstrap.servers": bootstrap}, name, f"{name}.pass1", f"{name}.pass2"):
        load(bootstrap, f"{name}.publish", records, keys)
        yield name


@contextlib.contextmanager
def broker(running_bootstrap: str | None) -> Iterator[str]:
    """The broker to measure on."""
    if running_bootstrap is not None:
        yield running_bootstrap
        return
    with EmbeddedBroker() as embedded:
        yield embedded.bootstrap


def write_settings(directory: Path, name: str, bootstrap: str, **topic: Any) -> Path:
    """Write the settings of one worker with its state in `directory`; `topic` has those that are not defaults."""
    return write_setup(directory, name, {"bootstrap.servers": bootstrap}, topic=topic).file


def setup_of(bootstrap: str, name: str, settings: Path) -> BenchSetup:
    """The setup of the settings in a file."""
    config = load_settings(settings)
    assert config.runtime.metrics_port is not None
    partitions = config.topics[name].partitions
    return BenchSetup(name, {"bootstrap.servers": bootstrap}, settings, config.runtime.metrics_port, partitions)


def passthrough(bootstrap: str, name: str, count: int) -> Figure:
    """Run the ceiling once."""
    with tempfile.TemporaryDirectory(prefix="sowstream-bench-") as directory:
        outputs = f"{name}.pass1", f"{name}.pass2"
        kafka = {"bootstrap.servers": bootstrap}
        return programs.run_ceiling(kafka, Path(directory), f"{name}.publish", outputs, count)


def worker(bootstrap: str, name: str, settings: Path, count: int) -> Figure:
    """Run a worker from its first record until the group has committed all."""
    return programs.run_worker(setup_of(bootstrap, name, settings), count)


def wait_until(process: subprocess.Popen[bytes], log: Path, reached, every_s: float) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the worker ended or stalled:\n{log.read_text()[-3000:]}")
        time.sleep(every_s)


def committed(reader: LogReader, topic: str, partitions: int = PARTITIONS) -> int:
    """The number of input records that the group has committed."""
    return programs.committed(reader, topic, partitions)


def report(figures: dict[str, list[Figure]]) -> None:
    """Print the medians, side by side, and our factor over each other program: the median of the rounds' ratios."""
    ours = figures["sowstream"]
    print(f"{'':14}{'records/s':>12}{'CPU s/M':>10}{'sowstream is':>16}   (medians of {len(ours)} rounds)")
    for program, of_program in figures.items():
        rate = statistics.median(figure.records_per_s for figure in of_program)
        cpu = statistics.median(figure.cpu_s_per_million for figure in of_program)
        of_rounds = sorted(ratios(ours, of_program))
        rounds = ", ".join(f"{ratio:.2f}" for ratio in of_rounds)
        comparison = "" if program == "sowstream" else f"{statistics.median(of_rounds):>14.2f} x   (rounds: {rounds})"
        print(f"{program:14}{rate:>12,.0f}{cpu:>10.1f}{comparison}")


if __name__ == "__main__":
    main()
