"""Measures `merge_stream` beside the one of another checkout and beside one worker: same input and broker, in turn.

`python -m tests.programs.benchmarks.merge_stream --before ../other-checkout --rounds 3`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from processor.trial.bench.setup import PARTITIONS
from tests.programs.benchmarks.throughput import broker, print_progress, topic, worker, write_settings

_RUN: Final = Path(__file__).with_name("merge_stream_run.py")
_OURS: Final = Path(__file__).parents[3]


def main() -> None:
    """Run the rounds, each with a topic of its own for each program, and print medians and ratios."""
    arguments = _arguments()
    checkouts = {"merge_stream": _OURS}
    if arguments.before:
        checkouts = {"before": arguments.before.resolve(), **checkouts}
    rounds: dict[str, list[dict[str, Any]]] = {}
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        for number in range(arguments.rounds):
            programs = list(checkouts) + ["worker"] * (not arguments.no_worker)
            for program in programs if number % 2 == 0 else reversed(programs):
                with topic(bootstrap, arguments.records + arguments.offsets, arguments.keys) as name:
                    if arguments.before:
                        _allow_large_records(bootstrap, name)
                    if program == "worker":
                        settings = write_settings(directory / name, name, bootstrap)
                        figures = worker(bootstrap, name, settings, arguments.records + arguments.offsets)._asdict()
                    else:
                        figures = _run(checkouts[program], bootstrap, name, directory, arguments)
                rounds.setdefault(program, []).append(figures)
                print_progress(f"  {program:14} {figures}")
    _report(rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(rounds, indent=1) + "\n")


def _allow_large_records(bootstrap: str, name: str) -> None:
    """Let the topics take records of 17 MiB, on which checkouts before 2026-11-24 insist."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    limit = ConfigEntry("max.message.bytes", str(17 * 1024 * 1024), incremental_operation=AlterConfigOpType.SET)
    topics = [each for each in admin.list_topics(timeout=30).topics if each.startswith(f"{name}.")]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, each, incremental_configs=[limit]) for each in topics]
    for done in admin.incremental_alter_configs(resources).values():
        done.result(30)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout, whose merge_stream is measured too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=300_000, help="records after the first micro-batch")
    parser.add_argument("--keys", type=int, default=30_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--offsets", type=int, default=100_000, help="records in a micro-batch")
    parser.add_argument("--small", type=int, default=20, help="micro-batches of 1,000 records, after all others")
    parser.add_argument("--no-worker", action="store_true", help="leave out the worker")
    parser.add_argument("--verbose", action="store_true", help="show what each run wrote to its log")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


def _run(checkout: Path, bootstrap: str, name: str, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the code of a checkout in a process of its own, and return its figures."""
    order = {
        "bootstrap": bootstrap,
        "name": name,
        "partitions": PARTITIONS,
        "cores": arguments.cores,
        "offsets": arguments.offsets,
        "records": arguments.records + arguments.offsets,
        "keys": arguments.keys,
        "small": arguments.small,
        "checkpoint": str(directory / f"{name}.checkpoint"),
    }
    log = directory / f"{name}.log"
    with log.open("w") as errors:
        run = subprocess.run(
            # -P: the directory of the program is no place for imports.
            [sys.executable, "-P", str(_RUN), json.dumps(order)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout), "SPARK_LOCAL_DIRS": str(directory)},
            stdout=subprocess.PIPE,
            stderr=None if arguments.verbose else errors,
            text=True,
            check=False,
        )
    if run.returncode:
        raise SystemExit(f"merge_stream of {checkout} failed:\n{log.read_text()[-3000:]}")
    figures: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return figures


def _report(rounds: dict[str, list[dict[str, Any]]]) -> None:
    """Print the medians, and the ratios to `merge_stream`: medians of the ratios of each round."""
    ours = rounds["merge_stream"]
    print(f"{'':14}{'records/s':>12}{'CPU s/M':>9}{'  JVM':>8}{'Python':>8}{'1,000':>9}{'merge_stream is':>18}")
    for program, figures in rounds.items():
        median = {
            field: statistics.median(figure[field] for figure in figures)
            for field in figures[0]
            if isinstance(figures[0][field], float)
        }
        of_rounds = [own["records_per_s"] / other["records_per_s"] for own, other in zip(ours, figures, strict=True)]
        print(
            f"{program:14}{median['records_per_s']:>12,.0f}{median['cpu_s_per_million']:>9.1f}"
            f"{median.get('jvm_s_per_million', 0):>8.1f}{median.get('python_s_per_million', 0):>8.1f}"
            f"{median.get('small_p50_s', 0):>8.2f}s"
            f"{statistics.median(of_rounds):>12.2f} x   ({', '.join(f'{ratio:.2f}' for ratio in sorted(of_rounds))})"
        )


if __name__ == "__main__":
    main()
