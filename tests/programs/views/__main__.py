"""Checks views at length: `make program NAME=views ARGS=histories`, `kills`, `bugs`, `stages` or `benchmark`."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import tempfile
from pathlib import Path

import pytest

from processor.trial.broker import EmbeddedBroker
from tests.builtin.view.bugs import OF_EXTREMES, OF_GROUPS, OF_JOINS
from tests.builtin.view.histories import ExtremesHistory, History
from tests.builtin.view.join_chain import JoinHistory
from tests.programs.views.benchmark import PARTS, RATIOS, Benchmark
from tests.programs.views.kills import kills
from tests.programs.views.many_histories import histories
from tests.programs.views.stage_cost import stage_costs


def main() -> int:
    """Run a check; returns 1 if it found an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.views", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    many = commands.add_parser("histories", help="random histories through the driver, equal to DuckDB at each step")
    many.add_argument("--count", type=int, default=10_000)
    many.add_argument("--steps", type=int, default=8)
    many.add_argument("--processes", type=int, help="none: one for each processor")
    bugs = commands.add_parser("bugs", help="injected faults, each of which the histories must find")
    bugs.add_argument("--count", type=int, default=50)
    killing = commands.add_parser("kills", help="a real broker, kills of it and of either stage, wiped disks")
    killing.add_argument("--kills", type=int, default=20)
    speed = commands.add_parser("benchmark", help="throughput beside Kafka Streams, a build, latency, fan-out")
    speed.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    speed.add_argument("--records", type=int, default=1_000_000, help="updates for the throughput")
    speed.add_argument("--keys", type=int, default=100_000)
    speed.add_argument("--groups", type=int, default=1_000, help="also the partners of a join")
    speed.add_argument("--kind", choices=list(RATIOS), default="sums", help="of the throughput")
    speed.add_argument("--rounds", type=int, default=1, help="of the throughput")
    speed.add_argument("--build-records", type=int, default=10_000_000)
    speed.add_argument("--references", type=int, default=100_000, help="rows that refer to one lookup record")
    speed.add_argument("--processes", type=int, default=1, help="of the view, for the throughput and the build")
    speed.add_argument("--seconds", type=float, default=30.0, help="of the latency")
    speed.add_argument("--rate", type=int, default=1_000, help="updates a second for the latency")
    speed.add_argument("--single", action="store_true", help="a part for each record: the throughput and the build")
    cost = commands.add_parser("stages", help="processor time of the stages for each update, without a broker")
    cost.add_argument("--records", type=int, default=300_000)
    cost.add_argument("--keys", type=int, default=100_000)
    cost.add_argument("--groups", type=int, default=1_000)
    cost.add_argument("--commit-records", type=int, default=12_000, help="input records of one transaction")
    cost.add_argument("--single", action="store_true", help="a part for each record")
    cost.add_argument("--kind", choices=list(RATIOS), default="sums")
    for each in (speed, cost):
        each.add_argument("--join-method", choices=["repartition", "broadcast"], default="repartition")
    for each in (many, killing, speed):
        each.add_argument("--seed", type=int, default=secrets.randbits(32))
    for each in (killing, speed):
        each.add_argument("--bootstrap", help="a Kafka that runs, which is not killed; none: an own one")
    arguments = parser.parse_args()
    if arguments.command == "histories":
        return histories(arguments.count, arguments.steps, arguments.seed, say, arguments.processes)
    if arguments.command == "bugs":
        return injected(arguments.count)
    if arguments.command == "stages":
        counts = {name: getattr(arguments, name) for name in ("records", "keys", "groups", "commit_records")}
        stage_costs(say, arguments.kind, **counts, is_combined=not arguments.single, join_method=arguments.join_method)
        return 0
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-views-")))
        if arguments.command == "kills":
            return kills(arguments.bootstrap, directory, arguments.kills, arguments.seed, say)
        bootstrap = arguments.bootstrap or cleanup.enter_context(EmbeddedBroker()).bootstrap
        keys, groups, processes = arguments.keys, arguments.groups, arguments.processes
        bench = Benchmark(
            bootstrap, directory, say, keys=keys, groups=groups, processes=processes, is_combined=not arguments.single,
            join_method=arguments.join_method,
        )  # fmt: skip
        measures = {
            "throughput": lambda: bench.throughput(arguments.records, arguments.kind, arguments.rounds),
            "build": lambda: bench.build(arguments.build_records),
            "latency": lambda: bench.latency(arguments.seconds, arguments.rate),
            "fanout": lambda: bench.fanout(arguments.references),
        }
        for part in arguments.only:
            measures[part]()
        return 0


def injected(count: int) -> int:
    """Inject each fault; returns 1 if one is not found."""
    missed = []
    for bugs, kind in ((OF_GROUPS, History), (OF_EXTREMES, ExtremesHistory), (OF_JOINS, JoinHistory)):
        for name, inject in bugs.items():
            with pytest.MonkeyPatch.context() as patch:
                inject(patch)
                found = next((seed for seed in range(count) if _is_found(kind, seed)), None)
            say(f"{name}: {'MISSED' if found is None else f'found by history {found}'}")
            missed += [name] if found is None else []
    return 1 if missed else 0


def _is_found(kind: type[History | JoinHistory], seed: int) -> bool:
    history = kind(seed)
    try:
        return any(history.step() for _ in range(8))
    except (AssertionError, KeyError, IndexError, ValueError):
        return True


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
