"""Measures how long a large topic stands still while it moves to another number of partitions.

python -m tests.programs.benchmarks.reshard --keys 1000000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import yaml

from tests.endtoend.world import World
from tests.programs.benchmarks.throughput import broker, print_progress

_OLD, _NEW = "prices", "prices_12"
_PARTITIONS, _MORE_PARTITIONS = 4, 12
_CHUNK: Final = 50_000
_TIMEOUT_S: Final = 1800.0


def main() -> None:
    """Fill a topic, move it, and count what came."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.benchmarks.reshard", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="records of the topic (default 1,000,000)")
    keys = parser.parse_args().keys
    with broker(None) as bootstrap, tempfile.TemporaryDirectory(prefix="sowstream-reshard-") as directory:
        world = World(bootstrap, Path(directory), _OLD, partitions=_PARTITIONS)
        try:
            measure(world, keys)
        finally:
            world.close()


def measure(world: World, keys: int) -> None:
    """Print the seconds of the command, and its own words about the pause.

    Raises:
        AssertionError: the new topic lacks a record.
    """
    first = world.start(name=[_OLD])
    print_progress(f"{keys:,} records of {_PARTITIONS} partitions")
    for chunk in range(0, keys, _CHUNK):
        numbers = range(chunk, min(keys, chunk + _CHUNK))
        world.publish([(b"%d" % key, {"id": key, "price": key, "text": "x" * 60}, {}) for key in numbers])
    await_processed(world)
    assert first.stop() == 0
    tree = yaml.safe_load(world.file.read_text())
    tree["topics"][_NEW] = {"key": ["/id"], "partitions": _MORE_PARTITIONS, "moved_from": _OLD}
    world.file.write_text(yaml.safe_dump(tree))
    command(world, "topics", "apply")
    world.start(name=[_OLD, _NEW])
    began_s = time.monotonic()
    said = command(world, "reshard", _OLD, "--yes")
    seconds = time.monotonic() - began_s
    print(said.strip())
    print(f"{keys:,} records moved in {seconds:.1f} s, {keys / seconds:,.0f}/s, with the start of the command")
    came = {record.key for record in world.read("sow", _NEW) if record.value}
    assert len(came) >= keys, f"{len(came):,} of {keys:,} records are in {_NEW}"


def await_processed(world: World) -> None:
    """Wait until all input is merged."""
    end_s = time.monotonic() + _TIMEOUT_S
    while not world.processed():
        assert time.monotonic() < end_s, world.workers[-1].log()
        time.sleep(0.5)  # Between two looks; the fact decides.


def command(world: World, *words: str) -> str:
    """Run `sowstream …`; returns its output."""
    program = [sys.executable, "-m", "processor.cli.main", *words, "-c", str(world.file)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
