"""Measures how fast a client returns the state of the world, from Kafka and from a kept view, in its own process.

```
python -m tests.programs.benchmarks.snapshot --records 1000000 --rounds 3
```
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import yaml

from processor.client import Client
from processor.config import load
from processor.kafka.admin.admin import Admin
from processor.topics.family import family_specs
from processor.trial.broker import EmbeddedBroker
from tests.programs.subscriptions.feed import Feed
from tests.programs.subscriptions.orders import Book

_TOPIC = "orders"
_PARTITIONS = 4
_BATCH = 20_000
_SEED = 7
_FILTER = "/qty > 990"
CASES = {
    "a filter that one in a hundred matches": (_FILTER, False),
    "all told": (None, False),
    "the filter, from a kept view": (_FILTER, True),
}
"""The queries, and whether each uses a view that an earlier run kept."""


def main() -> None:
    """Fill a topic, run the queries, and print medians."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.benchmarks.snapshot", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("CONFIG", "CASE", "DIR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        _ask(*arguments.one)
        return
    with tempfile.TemporaryDirectory(prefix="sowstream-snapshot-") as name, EmbeddedBroker() as broker:
        config = Path(name) / "sowstream.yaml"
        kafka = {"bootstrap.servers": broker.bootstrap}
        topics = {_TOPIC: {"key": ["/id"], "partitions": _PARTITIONS}}
        config.write_text(yaml.safe_dump({"kafka": kafka, "topics": topics}))
        Admin(kafka).create(family_specs(_TOPIC, ("sow", "delta"), partitions=_PARTITIONS))
        feed, records = Feed(broker.bootstrap, f"{_TOPIC}.sow"), Book(_SEED, arguments.records).all()
        while batch := list(islice(records, _BATCH)):
            feed.write(batch)
        print(f"{arguments.records:,} records; the first run of a view that is kept is left out", file=sys.stderr)
        _measured(config, "the filter, from a kept view", name)
        runs_of_case = {case: [_measured(config, case, name) for _ in range(arguments.rounds)] for case in CASES}
    print(f"{'':42}{'told':>10}{'wall s':>9}{'CPU s':>8}{'records/s':>12}   (medians of {arguments.rounds})")
    for case, runs in runs_of_case.items():
        messages, wall_s, cpu_s = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"{case:42}{messages:>10,.0f}{wall_s:>9.2f}{cpu_s:>8.2f}{arguments.records / wall_s:>12,.0f}")


def _measured(config: Path, case: str, directory: str) -> tuple[float, float, float]:
    """Messages, wall and processor seconds of one query, from the call to the last message."""
    words = [sys.executable, "-m", "tests.programs.benchmarks.snapshot", "--one", str(config), case, directory]
    output = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600).stdout.split()
    messages, wall_s, cpu_s = map(float, output)
    return messages, wall_s, cpu_s


def _ask(config: str, case: str, directory: str) -> None:
    selection, is_kept = CASES[case]
    view_dir = Path(directory) / "views" if is_kept else None
    with Client("snapshot", load(Path(config)), view_dir=view_dir) as client:
        client.get(_TOPIC, "nobody")  # Before the measurement, the client connects and all modules are imported.
        began_s, cpu_s = time.perf_counter(), time.process_time()
        messages = sum(1 for message in client.sow(_TOPIC, selection) if message.command == "sow")
        wall_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    print(messages, wall_s, used_s)


if __name__ == "__main__":
    main()
