"""Measures whether memory and lag of one worker, exactly once, remain constant at 70 % of its peak rate for long."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from processor.trial.bench.programs import wait_until
from tests.programs.benchmarks.chart import draw_soak
from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.growth_run import MB, Grown, Size, family, resident_bytes
from tests.programs.benchmarks.soak_feed import KEPT, feed
from tests.programs.benchmarks.soak_figures import Sample, quarters, summary
from tests.programs.benchmarks.throughput import broker, print_progress

if TYPE_CHECKING:
    from processor.trial.broker.guarded import GuardedProcess

PEAK_RUNS = 3
SAMPLES = 360
"""Number of samples: one every 5 s in half an hour."""
EVERY_S = 0.5
"""Least time between two samples."""


def main() -> None:
    """Measure the peak rate, run the worker at a part of it, and print its memory and lag."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.7, help="of what is measured just before")
    parser.add_argument("--rate", type=float, help="records a second, instead")
    parser.add_argument("--records", type=int, default=500_000, help="of each of three runs that measure the peak")
    parser.add_argument("--keys", type=int, default=Size().keys)
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--svg", type=Path, help="draw memory and lag into this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        print_progress(f"filling {arguments.keys:,} keys")
        grown = cleanup.enter_context(Grown(bootstrap, directory, Size(keys=arguments.keys), KEPT))
        grown.fill()
        peak = statistics.median(grown.run(arguments.records).records_per_s for _ in range(PEAK_RUNS))
        rate = arguments.rate or peak * arguments.load
        print_progress(f"{peak:,.0f} records/s at most; {rate:,.0f} for {arguments.minutes:g} minutes")
        with grown.worker() as process:
            wait_until(process, grown.is_shared, every_s=0.05)
            with feed(bootstrap, grown, rate):
                samples = soak(grown, process, arguments.minutes * 60)
    row = summary(samples, rate=rate, peak=peak)
    report(row, samples)
    write(arguments.json, {"soak": [row], "samples": [sample._asdict() for sample in samples]})
    if arguments.svg:
        draw_soak(samples, arguments.svg)


def soak(grown: Grown, process: GuardedProcess, seconds: float) -> list[Sample]:
    """Sample the worker; the time counts from the first record consumed."""
    before = grown.consumed()
    wait_until(process, lambda: grown.consumed() > before, every_s=0.05)
    working, began_s, every_s = family(process), time.monotonic(), max(EVERY_S, seconds / SAMPLES)
    samples: list[Sample] = []
    count = round(seconds / every_s)
    for number in range(1, count + 1):
        wait_until(process, lambda due_s=began_s + number * every_s: time.monotonic() >= due_s, every_s=0.05)
        at_s, taken = time.monotonic() - began_s, grown.consumed() - before
        samples.append(Sample(at_s, resident_bytes(working) / MB, grown.lag(), taken))
        if number % max(1, count // 12) == 0:
            last = samples[-1]
            print_progress(f"  {at_s / 60:5.1f} min: {last.resident_mb:,.0f} MB, {last.lag_records:,.0f} records wait")
    return samples


def report(row: dict[str, float], samples: list[Sample]) -> None:
    """Print the quarters, side by side."""
    print(f"{'median of the quarter':24}{'1st':>10}{'2nd':>10}{'3rd':>10}{'4th':>10}   ({row['minutes']:.1f} minutes)")
    for field in ("resident_mb", "lag_records"):
        print(f"{field:24}" + "".join(f"{value:>10,.0f}" for value in quarters(samples, field)))
    print(
        f"{row['taken_per_s']:,.0f} records/s taken of {row['rate']:,.0f} published, {row['peak']:,.0f} at most; "
        f"memory of the last quarter is {row['memory_growth']:.2f} times the second's; "
        f"the longest lag was {row['lag_s_most']:.2f} s of input"
    )


if __name__ == "__main__":
    main()
