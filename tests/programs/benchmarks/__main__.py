"""Runs the suite: every program in turn, whose figures go into one file, then the goals and the chart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.programs.benchmarks.chart import draw_throughput
from tests.programs.benchmarks.figures import PLACE, SUITE_FILE
from tests.programs.benchmarks.goals import Programs, judge
from tests.programs.benchmarks.machine import machine
from tests.programs.benchmarks.suite import PROGRAMS, TEN_MILLION, run
from tests.programs.benchmarks.throughput import print_progress


def main() -> None:
    """Run the requested programs; earlier figures of the other programs stay in the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="PROGRAM",
                        help=", ".join(PROGRAMS))  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: shows that all works, the figures say nothing"
    )
    parser.add_argument(
        "--ten-million", action="store_true", help="growth up to ten million keys, too: needs about 10 GB of disk"
    )
    parser.add_argument("--judge", action="store_true", help="run nothing: tell what the file says")
    parser.add_argument("--json", type=Path, help="where the figures go; build/benchmarks/figures.json, or quick.json")
    arguments = parser.parse_args()
    file = arguments.json or (PLACE / "quick.json" if arguments.quick else SUITE_FILE)
    report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"programs": {}}
    failed = [] if arguments.judge else _measure(arguments, file, report["programs"])
    throughput = report["programs"].get("throughput", {}).get("figures")
    if throughput:
        draw_throughput(throughput, _chart(file, "throughput"))
        print_progress(f"the chart is {_chart(file, 'throughput')}")
    _print_goals(report["programs"])
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _measure(arguments: argparse.Namespace, file: Path, programs: dict[str, Any]) -> list[str]:
    """Run the programs, and write the figures of each at once; returns the names of those that failed."""
    failed, here = [], machine()
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        print_progress(f"== {name}")
        more = TEN_MILLION if name == "growth" and arguments.ten_million else ()
        more = ("--svg", str(_chart(file, "soak"))) if name == "soak" else more
        try:
            programs[name] = {**run(name, is_quick=arguments.quick, more=more), "machine": here}
        except SystemExit as error:
            print_progress(str(error))
            failed.append(name)
        file.write_text(json.dumps({"programs": programs}, indent=1) + "\n", encoding="utf-8")
    print_progress(f"the figures are in {file}")
    return failed


def _chart(file: Path, what: str) -> Path:
    """The path of a chart, in the directory of its figures."""
    return file.with_name(f"{file.stem}-{what}.svg")


def _print_goals(programs: Programs) -> None:
    """Print the goals, each with its figure."""
    if any(entry["is_quick"] for entry in programs.values()):
        print("Of small sizes: it works, but these are no figures.")
    for verdict in judge(programs):
        print(f"{verdict.state:14}{verdict.goal:56}{verdict.figure}")
    for name in ("restore", "conflation", "subscriptions", "spark", "memory"):
        print(f"{'in the file' if name in programs else 'not measured':14}{name}")


if __name__ == "__main__":
    main()
