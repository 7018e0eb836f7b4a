"""Measures the time from a publication until its row is in a table: through Kafka, a worker and the job `table`.

    python -m tests.programs.benchmarks.spark_table_latency --rate 2000 --keys 50000 --seconds 60

The job runs as a process of its own, `sowstream-spark run`, and begins a micro-batch every two seconds. A reader looks
for a new snapshot of the Parquet table twenty times a second. Of each key it finds the last publication that the
snapshot has; the earlier ones were in no snapshot. With `--failing` a job of features is in the same process that fails
in each micro-batch, over the same topic, and is tried again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
import yaml

from processor.kafka.admin.admin import Admin
from processor.kafka.clients.publisher import Publisher
from processor.topics.family import control_spec
from processor.trial.bench.programs import running, wait_until, worker_process
from processor.trial.bench.result import percentile
from processor.trial.bench.setup import PARTITIONS, BenchSetup, topics, write_setup
from processor.trial.broker.guarded import GuardedProcess
from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.throughput import broker, print_progress

_LOOK_S: Final = 0.05
_PACE_S: Final = 0.01
_TABLE: Final = "book"
_FIRST_ROWS: Final = 1_000_000
"""The records for which the wait for the first rows is long enough: Spark starts late on a busy machine."""
_COLUMNS: Final = "id LONG, sent_s DOUBLE"


def main() -> None:
    """Run once, and print the percentiles."""
    arguments = _arguments()
    name = f"bench{uuid.uuid4().hex[:8]}"
    with broker(arguments.bootstrap) as bootstrap, tempfile.TemporaryDirectory(prefix="sowstream-bench-") as directory:
        kafka = {"bootstrap.servers": bootstrap}
        sums = f"{name}_sums"
        with topics(kafka, name, f"{sums}.publish"):
            Admin(kafka).create([control_spec()])
            families = {name: {"partitions": PARTITIONS}, sums: {"key": ["/id"], "partitions": PARTITIONS}}
            setup = write_setup(Path(directory) / name, name, kafka, topics=families)
            jobs = {_TABLE: _book(name, arguments.every)}
            if arguments.failing:
                jobs["broken"] = _broken(name, sums, arguments.every)
            delays_s = _delays(setup, jobs, arguments)
    if not delays_s:
        sys.exit("no publication reached the table in that time; give it more --seconds")
    parts = {f"p{part}_s": percentile(delays_s, part / 100) for part in (50, 95, 99)}
    figures = ", ".join(f"p{part} {parts[f'p{part}_s']:.2f} s" for part in (50, 95, 99))
    print(f"{len(delays_s):,} publications: {figures} (p99 at most 10)")
    write(arguments.json, {"table": [parts]})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=2_000, help="publications a second")
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=60, help="time that counts, after a third of it as a warm-up")
    parser.add_argument("--failing", action="store_true", help="beside a job that always fails")
    parser.add_argument("--every", default="2s", help="time between the starts of two micro-batches")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


def _delays(setup: BenchSetup, jobs: dict[str, Any], arguments: argparse.Namespace) -> list[float]:
    """Run worker, jobs and feed; the delay of each publication that was seen."""
    snapshots = _Snapshots(setup.directory / _TABLE)
    with running(worker_process(setup)), running(_jobs(setup, jobs)) as job:
        feed = _Feed(setup, arguments.rate, arguments.keys)
        with feed:
            wait_until(job, lambda: bool(snapshots.look()), every_s=_LOOK_S, count=_FIRST_ROWS)
            print_progress("the table has its first rows")
            begun_s = time.time()
            counted_s = begun_s + arguments.seconds / 3
            delays_s: list[float] = []

            def is_over() -> bool:
                seen = snapshots.look()
                delays_s.extend(at_s - sent_s for at_s, sent_s in seen if sent_s >= counted_s)
                return time.time() > counted_s + arguments.seconds

            wait_until(job, is_over, every_s=_LOOK_S, count=int(arguments.rate * arguments.seconds * 4))
    return sorted(delays_s)


def _book(topic: str, every: str) -> dict[str, Any]:
    """The job whose rows are timed."""
    return {"job": "table", "topic": topic, "every": every, "to": {"path": _TABLE}, "schema": _COLUMNS}


def _broken(topic: str, target: str, every: str) -> dict[str, Any]:
    """A job that fails in each micro-batch, and is tried again without the long pauses of the default settings."""
    sql = f"SELECT 'all' AS id, CAST(raise_error(CAST(count(*) AS STRING)) AS LONG) AS n FROM {topic}"
    job = {"job": "features", "from": [topic], "topic": target, "key": ["id"], "every": every, "sql": sql}
    return job | {"schemas": {topic: _COLUMNS}, "retry_delay_max": every, "retries": 1_000_000}


def _jobs(setup: BenchSetup, jobs: dict[str, Any]) -> GuardedProcess:
    """The process of the jobs, not started yet."""
    file = setup.directory / "pipeline.yaml"
    file.write_text(yaml.safe_dump({"settings": setup.file.name, "jobs": jobs}), encoding="utf-8")
    command = [sys.executable, "-m", "spark_integration.cli", "run", "-c", str(file)]
    return GuardedProcess("job", command, setup.directory, env={"SPARK_LOCAL_DIRS": str(setup.directory)})


class _Feed:
    """Publishes records that have the time of their publication, at a rate, in a thread of its own."""

    def __init__(self, setup: BenchSetup, rate: float, keys: int) -> None:
        self._topic, self._rate, self._keys = setup.topic("publish"), rate, keys
        self._publisher = Publisher({**setup.kafka, "linger.ms": "5"})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._publisher.flush()

    def _run(self) -> None:
        begun_s, sent = time.monotonic(), 0
        while not self._is_over.wait(_PACE_S):
            due = int((time.monotonic() - begun_s) * self._rate)
            while sent < due:
                # A step that shares no divisor with the number of keys: each key has its turn.
                key = sent * 7_919 % self._keys
                self._publisher.send(self._topic, b"%d" % key, json.dumps({"id": key, "sent_s": time.time()}).encode())
                sent += 1
            self._publisher.serve()


class _Snapshots:
    """The snapshots of the table, in the order in which they appear."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self._sent_s: dict[int, float] = {}

    def look(self) -> list[tuple[float, float]]:
        """Return the times at which each new publication was seen and sent, in seconds since the epoch."""
        names = self._path / "_snapshots"
        numbers = [int(file.stem) for file in names.glob("*.json") if file.stem.isdigit()]
        newest = max(numbers, default=0)
        if newest <= self._number:
            return []
        now_s, self._number = time.time(), newest
        directory = json.loads((names / f"{newest}.json").read_text(encoding="utf-8"))["directory"]
        table = ds.dataset(self._path / "data" / directory, format="parquet").to_table(columns=["id", "sent_s"])
        last = dict(zip(table["id"].to_pylist(), table["sent_s"].to_pylist(), strict=True))
        new = [(now_s, sent_s) for key, sent_s in last.items() if self._sent_s.get(key) != sent_s]
        self._sent_s = last
        return new


if __name__ == "__main__":
    main()
