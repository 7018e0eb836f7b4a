"""Measures the time from publishing a record until it can be read, under each guarantee: same broker, in turn."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from processor.trial.bench.programs import delays_s, run_worker
from processor.trial.bench.result import percentile as at
from processor.trial.bench.setup import topics, write_setup
from tests.programs.benchmarks.figures import Figures, load, write
from tests.programs.benchmarks.throughput import Figure, broker, print_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.trial.bench.setup import BenchSetup

GUARANTEES = ("exactly_once", "at_least_once")


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000, help="at which latency is measured")
    parser.add_argument("--rate", type=float, default=500.0, help="records a second")
    parser.add_argument("--load", type=int, default=200_000, help="records for throughput; 0: do not measure it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", choices=("sow", "delta"), default="sow", help="the topic that is read")
    parser.add_argument("--json", type=Path, help="write the percentiles of every round to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    delays: dict[str, list[float]] = {guarantee: [] for guarantee in GUARANTEES}
    rounds: Figures = {guarantee: [] for guarantee in GUARANTEES}
    rates: dict[str, list[Figure]] = {guarantee: [] for guarantee in GUARANTEES}
    with broker(arguments.bootstrap) as bootstrap:
        for number in range(arguments.rounds * len(GUARANTEES)):
            guarantee = GUARANTEES[number % len(GUARANTEES)]
            with family(bootstrap, guarantee) as setup:
                late_s = delays_s(setup, arguments.records, arguments.rate, output=arguments.output)
                delays[guarantee] += late_s
                rounds[guarantee].append({f"p{part}_ms": at(late_s, part / 100) * 1000 for part in (50, 99)})
                print_progress(
                    f"{guarantee}: p50 {at(late_s, 0.5) * 1000:.1f} ms, p99 {at(late_s, 0.99) * 1000:.1f} ms"
                )
            if arguments.load:
                with family(bootstrap, guarantee) as setup:
                    load(bootstrap, setup.topic("publish"), arguments.load, arguments.load // 5)
                    rates[guarantee].append(run_worker(setup, arguments.load))
                    print_progress(f"{guarantee}: {rates[guarantee][-1].records_per_s:,.0f} records/s")
    print(f"{'':16}{'p50 ms':>8}{'p99 ms':>8}{'records/s':>12}{'CPU s/M':>10}")
    for guarantee in GUARANTEES:
        ordered = sorted(rates[guarantee])
        best = ordered[-1] if ordered else Figure(0, 0)
        p50, p99 = (at(delays[guarantee], part) * 1000 for part in (0.5, 0.99))
        print(f"{guarantee:16}{p50:>8.1f}{p99:>8.1f}{best.records_per_s:>12,.0f}{best.cpu_s_per_million:>10.1f}")
    write(arguments.json, rounds)


@contextlib.contextmanager
def family(bootstrap: str, guarantee: str) -> Iterator[BenchSetup]:
    """Create topics and settings for one guarantee."""
    name, kafka = f"bench{uuid.uuid4().hex[:8]}", {"bootstrap.servers": bootstrap}
    with tempfile.TemporaryDirectory(prefix="sowstream-bench-") as directory, topics(kafka, name):
        yield write_setup(Path(directory) / name, name, kafka, guarantee=guarantee)


if __name__ == "__main__":
    main()
