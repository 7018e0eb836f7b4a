"""Measures the time of commands from the start of the process to its end, on the clock and of processors.

`sowstream get` and `sow` show one record, with Kafka's share of the time; `sowstream-spark check` reads the pipeline of
`sowstream-spark init`, with its SQL and without. The commands run as installed ones do, with compiled modules on disk,
in turn. One broker on the same machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import yaml

from processor.client import Client
from processor.trial.broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KAFKA: Final = """
import sys, time
from processor.client import Client
began_s = time.monotonic()
with Client("start", sys.argv[1]) as client:
    {call}
print(time.monotonic() - began_s)
"""
_CALLS: Final = {"get": 'client.get("orders", "7")', "sow": 'list(client.sow("orders"))'}
_GROUPS: Final = ("client", "check")


class Taken(NamedTuple):
    """The seconds of one command."""

    clock_s: float
    """From its start to its end."""
    processor_s: float
    """Of all its processes."""


def main() -> None:
    """Print the medians, in seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=_GROUPS, help="client: get and sow; check: sowstream-spark check")
    arguments = parser.parse_args()
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="sowstream-start-") as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        print("| command | median | least | processor time, median | Kafka's share, median |\n|---|---|---|---|---|")
        if arguments.only != "check":
            _client(Path(folder), broker.bootstrap, environment, arguments.rounds)
        if arguments.only != "client":
            _check(Path(folder), broker.bootstrap, environment, arguments.rounds)


def _client(folder: Path, bootstrap: str, environment: Mapping[str, str], rounds: int) -> None:
    file = folder / "sowstream.yaml"
    _write(file, bootstrap, {"orders": {"partitions": 4}})
    options = ["-c", str(file)]
    _run(_sowstream("topics", "apply", *options), environment)
    worker = subprocess.Popen(
        _sowstream("worker", "orders", *options), env=environment, cwd=folder, stderr=subprocess.DEVNULL
    )
    try:
        with Client("start", file) as client:
            client.publish("orders", {"id": 7, "qty": 3}, ack="persisted").result(60)
    finally:
        worker.terminate()
        worker.wait(60)
    shares_s = {}
    for name, call in _CALLS.items():
        program = [sys.executable, "-c", _KAFKA.format(call=call), str(file)]
        shares_s[f"sowstream {name}"] = [
            float(subprocess.check_output(program, env=environment)) for _ in range(rounds)
        ]
    commands = {
        "sowstream get": _sowstream("get", "orders", "7", *options),
        "sowstream sow": _sowstream("sow", "orders", *options),
    }
    _measure(commands, environment, rounds, shares_s)


def _check(folder: Path, bootstrap: str, environment: Mapping[str, str], rounds: int) -> None:
    from spark_integration.pipeline.pipeline_settings import PipelineSettings  # Spark is optional.

    first = folder / "first"
    check = [sys.executable, "-m", "spark_integration.cli", "check", "-c", str(first / "pipeline.yaml")]
    _run([sys.executable, "-m", "spark_integration.cli", "init", str(first)], environment)
    _write(first / "sowstream.yaml", bootstrap, yaml.safe_load((first / "sowstream.yaml").read_text())["topics"])
    _run(_sowstream("topics", "apply", "-c", str(first / "sowstream.yaml")), environment)
    jobs = PipelineSettings.load(first / "pipeline.yaml").jobs
    without = [name for name, job in jobs.items() if not job.kind.sql(job.settings)]
    assert len(without) < len(jobs), "one has SQL"
    commands = {"sowstream-spark check": check, f"sowstream-spark check {' '.join(without)}": [*check, *without]}
    _measure(commands, environment, rounds, {})


def _measure(
    commands: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    rounds: int,
    shares_s: Mapping[str, Sequence[float]],
) -> None:
    taken: dict[str, list[Taken]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            taken[name].append(_run(command, environment))
    for name, every in taken.items():
        clock_s, processor_s = zip(*every[1:], strict=True)  # The first one compiles.
        share = f"{statistics.median(shares_s[name]):.2f} s" if name in shares_s else ""
        print(
            f"| `{name}` | {statistics.median(clock_s):.2f} s | {min(clock_s):.2f} s | "
            f"{statistics.median(processor_s):.2f} s | {share} |",
            flush=True,
        )


def _write(file: Path, bootstrap: str, topics: object) -> None:
    file.write_text(yaml.safe_dump({"kafka": {"bootstrap.servers": bootstrap}, "topics": topics}))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> Taken:
    before, began_s = os.times(), time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    clock_s, after = time.monotonic() - began_s, os.times()
    # Of processes that have ended: the broker, which runs, is not among them.
    return Taken(clock_s, after.children_user + after.children_system - before.children_user - before.children_system)


def _sowstream(*words: str) -> list[str]:
    return [sys.executable, "-m", "processor.cli.main", *words]


if __name__ == "__main__":
    main()
