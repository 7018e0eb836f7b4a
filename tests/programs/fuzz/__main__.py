"""Feeds a worker rubbish and accounts for every record: `make program NAME=fuzz ARGS="--records 1000000 --seed 7"`."""

from __future__ import annotations

import argparse
import secrets
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from tests.programs.benchmarks.throughput import broker, print_progress
from tests.programs.fuzz.run import Outcome, run


def main() -> int:
    """Run the fuzzer and print the account; returns 1 if anything does not add up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    print_progress(f"seed {arguments.seed}")
    directory = Path(tempfile.mkdtemp(prefix="sowstream-fuzz-"))
    try:
        with broker(arguments.bootstrap) as bootstrap:
            outcome = run(bootstrap, directory, records=arguments.records, seed=arguments.seed, report=print_progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report(outcome)
    return 1 if outcome.wrong else 0


def report(outcome: Outcome) -> None:
    """Print the account for people."""
    for fate, count in sorted(outcome.fates.items(), key=lambda item: -item[1]):
        print(f"{count:>10,}  {fate}")
    print(f"{outcome.inputs:>10,}  input records, {outcome.fates['rekeyed']:,} of them sent again with a key")
    print(
        f"{outcome.seconds:>10.0f}  seconds, {outcome.aborted} transactions rolled back, exit code {outcome.exit_code}"
    )
    quarters = [
        outcome.memory_mb[len(outcome.memory_mb) * part // 4 :][: len(outcome.memory_mb) // 4] for part in range(4)
    ]
    if all(quarters):
        medians = ", ".join(f"{statistics.median(quarter):.0f}" for quarter in quarters)
        print(f"{'':>10}  memory of the worker by quarters of the run, medians: {medians} MB")
    for line in outcome.wrong:
        print(f"WRONG       {line}")


if __name__ == "__main__":
    sys.exit(main())
