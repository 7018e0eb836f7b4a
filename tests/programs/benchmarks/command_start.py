"""Measures the time of `sowstream get` and `sow`, from the start of the process to its end, and Kafka's share of it.

The commands run as installed ones do, with compiled modules on disk. One record, one broker on the same machine.
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
from typing import TYPE_CHECKING, Final

import yaml

from processor.client import Client
from processor.trial.broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

_KAFKA: Final = """
import sys, time
from processor.client import Client
began_s = time.monotonic()
with Client("start", sys.argv[1]) as client:
    {call}
print(time.monotonic() - began_s)
"""
_CALLS: Final = {"get": 'client.get("orders", "7")', "sow": 'list(client.sow("orders"))'}


def main() -> None:
    """Print the medians, in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="sowstream-start-") as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        file = Path(folder, "sowstream.yaml")
        file.write_text(
            yaml.safe_dump({"kafka": {"bootstrap.servers": broker.bootstrap}, "topics": {"orders": {"partitions": 4}}})
        )
        options = ["-c", str(file)]
        _run(["topics", "apply", *options], environment)
        worker = subprocess.Popen(
            _command(["worker", "orders", *options]), env=environment, cwd=folder, stderr=subprocess.DEVNULL
        )
        try:
            with Client("start", file) as client:
                client.publish("orders", {"id": 7, "qty": 3}, ack="persisted").result(60)
        finally:
            worker.terminate()
            worker.wait(60)
        print("| command | median | least | Kafka's share, median |\n|---|---|---|---|")
        for name, words in {"get": ["get", "orders", "7"], "sow": ["sow", "orders"]}.items():
            taken_s = [_timed([*words, *options], environment) for _ in range(rounds + 1)][1:]  # The first compiles.
            program = [sys.executable, "-c", _KAFKA.format(call=_CALLS[name]), str(file)]
            shares_s = [float(subprocess.check_output(program, env=environment)) for _ in range(rounds)]
            print(
                f"| `sowstream {name}` | {statistics.median(taken_s):.2f} s | {min(taken_s):.2f} s | "
                f"{statistics.median(shares_s):.2f} s |",
                flush=True,
            )


def _timed(words: Sequence[str], environment: dict[str, str]) -> float:
    began_s = time.monotonic()
    _run(words, environment)
    return time.monotonic() - began_s


def _run(words: Sequence[str], environment: dict[str, str]) -> None:
    subprocess.run(_command(words), env=environment, check=True, capture_output=True)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "processor.cli.main", *words]


if __name__ == "__main__":
    main()
