"""Measures the processor time of a merge alone, beside another checkout's: no Kafka, no disk, each in turn.

    python -m tests.programs.benchmarks.merge_cost --before ../old --rounds 12

Each measurement is a process of its own, which merges batches of deltas through `ProcessorTestDriver` and prints the
microseconds a record of `Task.process` in its fastest batch: other load makes batches slower, never faster.

series  is
------  ---------------------------------------------------------------------------
fast    deltas without headers: the compiled fast path
parts   deltas with `client` and `sequence`, and a merge rule: the merge in parts
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Headers, Record

SERIES: Final = ("fast", "parts")
_KEYS, _BATCH, _BATCHES, _WARM_UP = 2_000, 500, 120, 20


def main() -> None:
    """Measure both checkouts in turn, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, with its modules compiled")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--one", choices=SERIES, help="measure this series here, once")
    arguments = parser.parse_args()
    if arguments.one:
        print(fastest_us(arguments.one))
        return
    checkouts = [one.resolve() for one in (arguments.before, Path.cwd()) if one]
    for series in SERIES:
        figures: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
        for _ in range(arguments.rounds):
            for checkout in checkouts:
                figures[checkout].append(_measure(checkout, series))
        for checkout, seen in figures.items():
            print(f"{series:8}{statistics.median(seen):8.2f} µs a record  {checkout}")
        if len(checkouts) > 1:
            pairs = zip(*figures.values(), strict=True)
            print(f"{series:8}{statistics.median(now / then for then, now in pairs):8.3f} times the earlier one")


def _measure(checkout: Path, series: str) -> float:
    """Measure one series of a checkout in a process of its own."""
    # This file as a script: the other checkout may lack it, and its modules are to be those that are imported.
    done = subprocess.run(
        [sys.executable, __file__, "--one", series],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def fastest_us(series: str) -> float:
    """Merge all batches, and return the processor time of the fastest one, in microseconds a record."""
    from processor.builtin.delta_merge.delta_merge import DeltaMerge
    from processor.config import TopicConfig
    from processor.runtime.task import Task
    from processor.testing import ProcessorTestDriver

    batches_s: list[float] = []
    process = Task.process

    def timed(task: Task, records: Sequence[Record]) -> None:
        began_s = time.process_time()
        process(task, records)
        batches_s[-1] += time.process_time() - began_s

    settings = TopicConfig(key=("/id",), merge_rules={} if series == "fast" else {"/qty": "sum"})
    driver = ProcessorTestDriver(DeltaMerge, settings, name="orders", checks_state=False)
    Task.process = timed  # type: ignore[method-assign,assignment]
    for batch in range(_BATCHES):
        for number in range(batch * _BATCH, (batch + 1) * _BATCH):
            headers: Headers = [("client", b"feed"), ("sequence", b"%d" % (number + 1))] if series == "parts" else []
            driver.append_input(b"%d" % (number % _KEYS), _message(number), headers or None)
        batches_s.append(0.0)
        driver.feed()
        driver.commit()
    return min(batches_s[_WARM_UP:]) / _BATCH * 1_000_000


def _message(number: int) -> bytes:
    """A full record at first, then a delta of three of its fields."""
    head = b'{"id":%d,"status":"s%d","qty":%d,"price":%d.25' % (number % _KEYS, number % 5, number % 100, number % 977)
    if number >= _KEYS:
        return head + b"}"
    return head + b',"symbol":"EURUSD","notes":"lorem ipsum dolor sit amet","customer":{"name":"ACME","tier":2}}'


if __name__ == "__main__":
    main()
