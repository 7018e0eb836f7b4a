"""The programs of the suite: their options at full and small size, and the files of their figures."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.programs.benchmarks.machine import load_average

if TYPE_CHECKING:
    from collections.abc import Sequence

TEN_MILLION = ("--keys", "10000", "100000", "1000000", "10000000")


class Program(NamedTuple):
    """One program of the suite."""

    module: str
    full: str
    """Its options for figures that count."""
    quick: str
    """Its options for a quick check that it works."""


PROGRAMS = {
    "throughput": Program(
        "throughput",
        "--rivals --records 1000000 --keys 100000 --rounds 5",
        "--rivals --records 20000 --keys 2000 --rounds 2",
    ),
    "latency": Program(
        "latency",
        "--output delta --rate 1000 --records 10000 --rounds 5 --load 0",
        "--output delta --rate 1000 --records 1000 --rounds 1 --load 0",
    ),
    "loaded latency": Program(
        "latency_loaded", "--rounds 5", "--records 10000 --keys 2000 --seconds 5 --load 0.1 --rounds 1"
    ),
    "growth": Program("growth", "--rounds 5", "--records 5000 --state 5000 --keys 1000 10000 --rounds 1"),
    "memory": Program("memory", "", "--keys 50000 --records 10000"),
    "restore": Program("restore", "--rounds 5", "--records 20000 --rounds 1"),
    "conflation": Program("conflation", "--rounds 3", "--records 45000 --keys 500 --interval 0.1 --rounds 1"),
    "subscriptions": Program("subscriptions", "", "--updates 1000 --records 5000 --rounds 2"),
    "spark": Program("spark_merge", "", "--deltas 20000 --keys 2000 --tasks 2 --memory 1g"),
    "soak": Program("soak", "", "--minutes 0.5 --records 5000 --keys 2000 --rate 2000"),
}
"""The programs by the name that `--only` takes, in this order."""


def run(name: str, *, is_quick: bool, more: Sequence[str] = ()) -> dict[str, Any]:
    """Run one program, which prints its own table; returns its entry in the suite's file.

    Raises:
        SystemExit: the program failed, and has printed the reason.
    """
    program = PROGRAMS[name]
    options = [*(program.quick if is_quick else program.full).split(), *more]
    with tempfile.TemporaryDirectory(prefix="sowstream-bench-") as directory:
        file = Path(directory) / "figures.json"
        began, busy = datetime.now(UTC), load_average()
        began_s = time.monotonic()
        order = [sys.executable, "-m", f"tests.programs.benchmarks.{program.module}", *options, "--json", str(file)]
        ended = subprocess.run(order, check=False)
        if ended.returncode or not file.exists():
            raise SystemExit(f"{name} failed with exit code {ended.returncode}")
        return {
            "began": began.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - began_s, 1),
            "load_average_before": busy,
            "options": " ".join(options),
            "is_quick": is_quick,
            "figures": json.loads(file.read_text(encoding="utf-8")),
        }
