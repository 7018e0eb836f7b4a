"""The throughput of a queue: `python -m tests.programs.queues.throughput --messages 100000 --consumers 2`.

A worker fills the queue first. Then consumers, each in a process of its own, read all messages, which are decoded and
acknowledged one by one; the rate is that from the first message to the last one, of all consumers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processor.client import Client
from processor.config import load
from processor.queues.share_groups import set_share_groups
from processor.trial.broker import EmbeddedBroker
from tests.endtoend.world import World

_IDLE_S = 5.0
_PARTITIONS = 4


def main() -> int:
    """Measure once; returns 1 if messages are missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.queues.throughput", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--consumers", type=int, default=2, help="each in a process of its own")
    parser.add_argument("--max-backlog", type=int, default=500, help="most messages that one of them holds")
    parser.add_argument("--drain", nargs=2, metavar=("CONFIG", "QUEUE"), help="be one of the consumers")
    arguments = parser.parse_args()
    if arguments.drain is not None:
        drain(Path(arguments.drain[0]), arguments.drain[1], arguments.max_backlog)
        return 0
    with contextlib.ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sowstream-queues-")))
        bootstrap = cleanup.enter_context(EmbeddedBroker()).bootstrap
        name = f"q{secrets.token_hex(4)}"
        section = {f"{name}_jobs": {"underlying": name, "lease": 30.0}}
        world = World(bootstrap, directory, name, sections={"queues": section}, partitions=_PARTITIONS)
        cleanup.callback(world.close)
        set_share_groups(world.config)
        world.start(name=name)
        world.publish([(b"%d" % n, {"id": n, "state": "paid", "qty": n % 100}, {}) for n in range(arguments.messages)])
        world.settle()
        for worker in world.workers:
            worker.kill()
        shares = [share for share in measure(world, f"{name}_jobs", arguments) if share[0]]
    assert shares, "no message came"
    counts, begins_s, ends_s = zip(*shares, strict=True)
    rate = sum(counts) / (max(ends_s) - min(begins_s))
    print(f"{sum(counts):,} messages acknowledged by {arguments.consumers} consumers ({counts}): {rate:,.0f}/s")
    return int(sum(counts) != arguments.messages)


def measure(world: World, queue: str, arguments: argparse.Namespace) -> list[tuple[int, float, float]]:
    """Let consumers read the queue; of each the messages, and the times of the first and the last one."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.programs.queues.throughput", "--drain", str(world.file), queue,
             f"--max-backlog={arguments.max_backlog}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(arguments.consumers)
    ]  # fmt: skip
    return [tuple(json.loads(program.communicate()[0])) for program in programs]


def drain(file: Path, name: str, max_backlog: int) -> None:
    """Read a queue until no message comes, and print the number and the times of the first and the last one."""
    count, begin_s, end_s = 0, 0.0, 0.0
    with Client("drain", load(file)) as client, client.queue(name, max_backlog=max_backlog, timeout_s=_IDLE_S) as queue:
        for message in queue:
            message.ack()
            end_s = time.monotonic()
            begin_s = begin_s or end_s
            count += 1
    print(json.dumps([count, begin_s, end_s]))


if __name__ == "__main__":
    sys.exit(main())
