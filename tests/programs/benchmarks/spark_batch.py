"""Measures the processor time of `merge_batch` next to native Spark SQL and to older code, in interleaved rounds.

    python -m tests.programs.benchmarks.spark_batch --deltas 1000000 --keys 100000 --before ../old

Each code has a session of its own in a process of its own. The input is Parquet with Kafka's columns, so that no broker
takes part. The figures are processor time, JVM and Python together, as other load on the machine moves it little.

series         is
-------------  ------------------------------------------------------------------------------------------------
native         `from_json`, then `max_by(field, offset)` of each field: no deletes, no null, no nested object
plain          `merge_batch` of the same records, without headers
sequenced      the same with the headers `client` and `sequence`, no record twice
deltas         `plain` with `deltas=True`
fold           the merge of the tasks alone, in one process, without Spark
fold deltas    the same with `deltas=True`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.programs.benchmarks.figures import Figures, Measured, write
from tests.programs.benchmarks.throughput import print_progress

SPARK_SERIES = ("native", "plain", "sequenced", "deltas")
FOLD_SERIES = ("fold", "fold deltas")


def main() -> None:
    """Write the input, measure the series in turn, print medians and ratios."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="sowstream-bench-") as directory, ExitStack() as stack:
        ours = stack.enter_context(_Code(arguments, Path.cwd(), directory))
        codes = {"": ours}
        if arguments.before:
            codes["before: "] = stack.enter_context(_Code(arguments, arguments.before, directory))
        ours.ask("write")
        figures: Figures = {}
        for number in range(-1, arguments.rounds):  # The first one warms up.
            for series in arguments.only:
                for prefix, code in codes.items():
                    if prefix and series not in arguments.before_only:
                        continue
                    measured = code.measure(series, arguments.deltas)
                    print_progress(f"round {number}: {prefix}{series} {measured['cpu_us']:.2f} µs")
                    if number >= 0:
                        figures.setdefault(prefix + series, []).append(measured)
    _print(figures)
    write(arguments.json, figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deltas", type=int, default=300_000, help="records of the input")
    parser.add_argument("--keys", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=4, help="tasks that fold")
    parser.add_argument("--before", type=Path, help="a directory with older code to measure in the same rounds")
    parser.add_argument("--before-only", nargs="+", default=["plain", *FOLD_SERIES], help="the series of older code")
    series = (*SPARK_SERIES, *FOLD_SERIES)
    parser.add_argument("--only", nargs="+", choices=series, default=list(series))
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


class _Code:
    """One version of the code: a process with a Spark session, which measures on request."""

    def __init__(self, arguments: argparse.Namespace, root: Path, directory: str) -> None:
        options = ("deltas", "keys", "cores", "tasks")
        # A file without imports of `tests`, which older code has, too.
        command = [sys.executable, str(Path(__file__).with_name("spark_batch_service.py").resolve()), directory]
        for name in options:
            command += [f"--{name}", str(getattr(arguments, name))]
        environment = os.environ | {"SPARK_LOCAL_DIRS": directory, "PYTHONPATH": str(root.resolve())}
        self._log = Path(directory, f"{root.resolve().name}.log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=root
            )

    def measure(self, series: str, count: int) -> dict[str, float]:
        """Run a series once: the microseconds of processor time for each record."""
        with Measured(self._process.pid) as measured:
            answer = self.ask(series)
        cpu_s = answer.get("cpu_s", measured.figures["cpu_s"])
        return {"cpu_us": cpu_s / count * 1e6, "records_per_s": count / measured.figures["seconds"]}

    def ask(self, request: str) -> dict[str, float]:
        """Send a request, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = ""
        with suppress(BrokenPipeError):
            print(request, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{request} failed:\n{self._log.read_text()[-3000:]}")
        return dict(json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _print(figures: Figures) -> None:
    medians = {name: statistics.median(figure["cpu_us"] for figure in rounds) for name, rounds in figures.items()}
    print(f"{'':20}{'CPU µs/record':>14}   rounds")
    for name, rounds in figures.items():
        each = " ".join(f"{figure['cpu_us']:.2f}" for figure in rounds)
        print(f"{name:20}{medians[name]:>14.2f}   {each}")
    for above, below, bar in (
        ("plain", "native", "at most 1.3"),
        ("sequenced", "plain", "at most 1.35"),
        ("before: plain", "plain", "at least 2.2"),
    ):
        if above in medians and below in medians:
            pairs = zip(figures[above], figures[below], strict=True)
            ratio = statistics.median(one["cpu_us"] / other["cpu_us"] for one, other in pairs)
            print(f"{above} : {below} {ratio:.2f} ({bar})")


if __name__ == "__main__":
    main()
