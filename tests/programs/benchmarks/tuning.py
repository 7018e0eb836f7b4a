"""Measures Kafka Streams with other settings than in the comparison, to check that the comparison is fair."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.peers import kafka_streams
from tests.programs.benchmarks.throughput import broker, print_progress, topic

if TYPE_CHECKING:
    from tests.programs.benchmarks.throughput import Figure

AS_COMPARED = "as compared"
SETTINGS: dict[str, tuple[str, ...]] = {
    AS_COMPARED: (),
    "store cached, 10 MB as shipped": ("-Dcached=true",),
    "store cached, 64 MB": ("-Dcached=true", "-Dstreams.statestore.cache.max.bytes=67108864"),
    "commits every 100 ms, as shipped": ("-Dstreams.commit.interval.ms=100",),
    "commits every second": ("-Dstreams.commit.interval.ms=1000",),
    "linger of 5 ms": ("-Dstreams.producer.linger.ms=5",),
    "linger of 100 ms, as shipped": ("-Dstreams.producer.linger.ms=100",),
    "batches of 16 KB, as shipped": ("-Dstreams.producer.batch.size=16384",),
    "polls of 1,000 records, as shipped": (
        "-Dstreams.consumer.max.poll.records=1000",
        "-Dstreams.buffered.records.per.partition=1000",
    ),
    "no compression, as shipped": ("-Dstreams.producer.compression.type=none",),
    "Java's parallel collector": ("-XX:+UseParallelGC",),
}
"""The tried settings, one at a time, as options for Java."""


def main() -> None:
    """Run the rounds, each with all settings in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], help="settings that have one of these words in their names")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    chosen = {name: options for name, options in SETTINGS.items()
              if name == AS_COMPARED or any(word in name for word in arguments.only)}  # fmt: skip
    figures: dict[str, list[Figure]] = {name: [] for name in chosen}
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        runs = {name: kafka_streams(directory, options=options) for name, options in chosen.items()}
        for number in range(arguments.rounds):
            turn = number % len(chosen)
            with topic(bootstrap, arguments.records, arguments.keys) as family:
                for name in [*chosen][turn:] + [*chosen][:turn]:
                    if (run := runs[name]) is None:
                        return
                    figures[name].append(run(bootstrap, family, arguments.records))
                    print_progress(f"  round {number + 1}: {name:36}{figures[name][-1].records_per_s:>9,.0f}/s")
    report(figures)
    write(arguments.json, {name: [run._asdict() for run in runs] for name, runs in figures.items()})


def report(figures: dict[str, list[Figure]]) -> None:
    """Print the medians, and the factor over the compared settings: the median of the rounds' ratios."""
    usual = figures[AS_COMPARED]
    print(f"{'Kafka Streams':36}{'records/s':>12}{'CPU s/M':>10}{'times':>8}   (medians of {len(usual)} rounds)")
    for name, runs in figures.items():
        rate, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        ratios = sorted(run.records_per_s / one.records_per_s for run, one in zip(runs, usual, strict=True))
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{name:36}{rate:>12,.0f}{cpu:>10.1f}{statistics.median(ratios):>8.2f}   (rounds: {rounds})")


if __name__ == "__main__":
    main()
