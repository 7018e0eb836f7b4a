"""Measures a record's costs for one worker, exactly once, as keys, records, partitions, processes or batches grow."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.growth_run import Figure, Grown, Size
from tests.programs.benchmarks.quota import can_hold
from tests.programs.benchmarks.throughput import broker, print_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = (10_000, 100_000, 1_000_000)
GROUPS = ("keys", "sizes", "partitions", "processes", "held", "batches")
_HELD_CORES = 0.4
"""Share of a core for a limited process: broker and other processes keep more than one of two cores."""


def main() -> None:
    """Fill the states, run the rounds of each group in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument(
        "--records", type=int, default=500_000, help="deltas of each run; fewer where records are large"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--keys", type=int, nargs="+", default=KEYS, help="of `keys`; 10000000 takes long, and about 10 GB"
    )
    parser.add_argument("--state", type=int, default=Size().keys, help="keys, where something else grows")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    figures: dict[str, list[Figure]] = {}
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        for group in arguments.only:
            if group == "held" and not can_hold():
                print(
                    "held: left out; only root may hold processes, and where control groups for processors are mounted"
                )
                continue
            chosen = sizes(group, arguments.keys, arguments.state)
            group_figures = measured(bootstrap, directory, chosen, arguments.records, arguments.rounds)
            report(group, group_figures)
            figures |= group_figures
    write(arguments.json, {name: [run._asdict() for run in runs] for name, runs in figures.items()})


def sizes(group: str, keys: Sequence[int] = KEYS, state: int = Size().keys) -> dict[str, Size]:
    """The sizes of a group by the names in the figures; the others are compared with the first."""
    usual = Size(keys=state)
    group_sizes = {
        "keys": {count: usual._replace(keys=count) for count in sorted(keys)},
        # Fewer keys: a tenth of them makes 100 MB of the largest records.
        "sizes": {count: usual._replace(keys=state // 10, size_bytes=count) for count in (70, 1_000, 10_000)},
        "partitions": {count: usual._replace(partitions=count) for count in (1, 4, 16, 64)},
        "processes": {count: usual._replace(processes=count) for count in (1, 2)},
        "held": {count: usual._replace(processes=count, cores=_HELD_CORES) for count in (1, 2)},
        "batches": {count: usual._replace(batch_records=count) for count in (500, 5_000, 50_000)},
    }[group]
    return {f"{group} {count}": size for count, size in group_sizes.items()}


def deltas_of(size: Size, records: int) -> int:
    """The number of deltas of a run: large records get fewer, so that at most ten times the bytes are written."""
    return max(1, records // max(1, size.size_bytes // 1_000))


def measured(
    bootstrap: str, directory: Path, chosen: dict[str, Size], records: int, rounds: int
) -> dict[str, list[Figure]]:
    """Fill the states, then run the sizes in turn; each round begins with another size."""
    figures: dict[str, list[Figure]] = {name: [] for name in chosen}
    with contextlib.ExitStack() as cleanup:
        grown = {}
        for name, size in chosen.items():
            print_progress(f"{name}: filling {size.keys:,} keys")
            grown[name] = cleanup.enter_context(Grown(bootstrap, directory, size))
            grown[name].fill()
        for number in range(rounds):
            turn = number % len(chosen)
            for name in [*chosen][turn:] + [*chosen][:turn]:
                figures[name].append(grown[name].run(deltas_of(chosen[name], records)))
                print_progress(f"  round {number + 1}: {name:20}{figures[name][-1].records_per_s:>10,.0f}/s")
    return figures


def report(group: str, figures: dict[str, list[Figure]]) -> None:
    """Print medians, and the costs of a record relative to the first size: the medians of the rounds' ratios."""
    first = next(iter(figures.values()))
    print(
        f"{'':20}{'records/s':>12}{'us/record':>11}{'CPU s/M':>10}{'resident MB':>13}{'cost':>8}{'CPU cost':>10}"
        f"   (medians of {len(first)} rounds)"
    )
    for name, runs in figures.items():
        rate, cpu, resident = (statistics.median(column) for column in zip(*runs, strict=True))
        pairs = list(zip(runs, first, strict=True))
        cost = statistics.median(one.records_per_s / run.records_per_s for run, one in pairs)
        cpu_cost = statistics.median(run.cpu_s_per_million / one.cpu_s_per_million for run, one in pairs)
        print(f"{name:20}{rate:>12,.0f}{1e6 / rate:>11.2f}{cpu:>10.2f}{resident:>13,.0f}{cost:>7.2f}x{cpu_cost:>9.2f}x")
    if group == "processes":
        print(
            "The broker takes its part of the same cores, unless it runs elsewhere (--bootstrap): two processes cannot"
        )
        print(
            "be twice as fast on two. A CPU cost of 1.0 says that they work no more than one: enough cores would do it."
        )
    if group == "held":
        print(f"Each process has {_HELD_CORES} of a core: as if the broker, which has the rest, were elsewhere.")


if __name__ == "__main__":
    main()
